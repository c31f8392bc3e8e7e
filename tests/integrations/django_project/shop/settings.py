"""Settings on a database that the environment names: DATABASE is a file of SQLite, a URL of PostgreSQL, or nothing."""

import os
from importlib.util import find_spec
from urllib.parse import urlsplit

SECRET_KEY = "for tests"
USE_TZ = True
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
TIME_ZONE = "Europe/Berlin"
ROOT_URLCONF = "shop.urls"
STATIC_URL = "static/"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
ALLOWED_HOSTS = ["*"]
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "treadle.integrations.django",
    "shop",
]
if find_spec("django.tasks") is None:
    INSTALLED_APPS.append("django_tasks")
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
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

_where = os.environ.get("DATABASE", "")
if _where.startswith("postgresql://"):
    _parts = urlsplit(_where)
    _database = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _parts.path.lstrip("/"),
        "USER": _parts.username,
        "PASSWORD": _parts.password or "",
        "HOST": _parts.hostname,
        "PORT": _parts.port,
        "CONN_MAX_AGE": int(os.environ.get("CONN_MAX_AGE", "0")),
        "CONN_HEALTH_CHECKS": "CONN_HEALTH_CHECKS" in os.environ,
        "TEST": {"NAME": f"test_{_parts.path.lstrip('/')}"},
    }
else:
    _database = {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": _where or ":memory:",
        "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 30},
        "TEST": {"NAME": f"{_where}.test"} if _where else {},
    }
DATABASES = {"default": _database, "other": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
# Only treadle's and the shop's own tables come by migrations: those of Django's take longer than our cases.
MIGRATION_MODULES = dict.fromkeys(("admin", "auth", "contenttypes", "sessions"))

TASKS = {
    "default": {"BACKEND": "treadle.integrations.django.backend.TreadleBackend", "QUEUES": ["default", "mail"]},
    "stubborn": {
        "BACKEND": "treadle.integrations.django.backend.TreadleBackend",
        "QUEUES": [],
        "OPTIONS": {"retry": __import__("treadle").Retry(max_attempts=3, base=0, jitter=0)},
    },
}
