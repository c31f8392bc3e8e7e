"""The page of schedule_form."""

from fastapi import APIRouter

from treadle.server.dashboard.page import PageRoute

router = APIRouter(route_class=PageRoute)
