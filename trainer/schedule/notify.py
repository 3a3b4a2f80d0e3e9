"""Sends the result of a period to a webhook, with retries. Training does not depend on it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import asdict

import httpx

from data_bridge.redaction import redact
from trainer.schedule.cron import Summary

logger = logging.getLogger(__name__)

_PAGE = (b"<!doctype html", b"<html")
_PAUSES = (0.5, 2.0, 8.0)


async def notify(url: str, summary: Summary, *, timeout: float = 10.0) -> bool:
    """POST ``summary`` as JSON; returns whether it was accepted. Faults are logged without the URL's secrets."""
    async with httpx.AsyncClient(timeout=timeout) as client:
        for pause in (*_PAUSES, None):
            try:
                answer = await client.post(url, json=asdict(summary))
                answer.raise_for_status()
                if not answer.content.lstrip()[:15].lower().startswith(_PAGE):
                    return True
                fault = "it answered with a web page; is a proxy or a login in between?"
            except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:  # the last two: not an address
                fault = redact(str(error) or type(error).__name__)
            if pause is None:
                break
            await asyncio.sleep(pause)
    logger.warning("the webhook did not accept the summary of the period: %s", fault)
    return False
