"""The pages: what is shown at which address. All of them are GET requests that change nothing.

There is a module for each thing that people look at; writes are in :mod:`redrive_ui.decision_api`.
"""

from fastapi import APIRouter

from redrive_ui.pages import audit, decisions, downloads, failures, find, messages, plan, routes, standing, static_files

router = APIRouter()
for page in (routes, plan, failures, messages, find, decisions, standing, audit, downloads, static_files):
    router.include_router(page.router)
