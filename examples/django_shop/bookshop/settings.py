"""A small project. The lines about treadle: one in INSTALLED_APPS, and TASKS for Django 6."""

from pathlib import Path
from typing import Any

import django

BASE_DIR = Path(__file__).resolve().parent.parent
SECRET_KEY = "an example, not a secret"
DEBUG = True
USE_TZ = True
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
ROOT_URLCONF = "bookshop.urls"
STATIC_URL = "static/"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "treadle.integrations.django",
    "bookshop",
]

MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]

DATABASES: dict[str, Any] = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": BASE_DIR / "shop.db",
        "OPTIONS": {"transaction_mode": "IMMEDIATE"},  # else SQLite refuses a second writer instead of waiting
    }
}

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

TREADLE = {"concurrency": 4}  # any setting of treadle; the url comes from DATABASES

if django.VERSION >= (6, 1):
    MAILERS = {"default": {"BACKEND": "django.core.mail.backends.console.EmailBackend"}}
else:
    EMAIL_BACKEND = "django.core.mail.backends.console.EmailBackend"

if django.VERSION >= (6, 0):  # before that: pip install django-tasks, and "django_tasks" in INSTALLED_APPS
    TASKS = {"default": {"BACKEND": "treadle.integrations.django.backend.TreadleBackend"}}
