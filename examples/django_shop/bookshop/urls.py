"""The shop's addresses."""

from django.contrib import admin
from django.urls import path

from bookshop.views import buy

urlpatterns = [path("admin/", admin.site.urls), path("buy", buy)]
