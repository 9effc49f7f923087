"""Celery as it is set up on both sides."""

from __future__ import annotations

from typing import Any

from celery import Celery
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from app.cluster.names import ALIVE, SEEN
from app.worker.slot import GRACE

RESTORE = 2
"""Seconds between looks for messages whose host has vanished."""


def visibility(run_limit: float) -> int:
    """Seconds after which a message that nobody has acknowledged goes to another host.

    It has to be longer than any run, else one that is still going on would be handed out twice.
    """
    return int(run_limit + GRACE) + 20


def make_celery(url: str, run_limit: float) -> Celery:
    """The application. A message is acknowledged when its run has ended, so that a host that vanishes
    leaves it to another; a run that ends its own process is answered by the host, and is not delivered again.
    """
    celery = Celery("faultbook", broker=url, set_as_current=False)
    celery.conf.update(
        accept_content=["json"],
        task_serializer="json",
        task_ignore_result=True,
        task_acks_late=True,
        task_create_missing_queues=True,
        worker_prefetch_multiplier=1,
        worker_send_task_events=False,
        worker_enable_remote_control=False,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options={
            "visibility_timeout": visibility(run_limit),
            "unacked_restore_interval": RESTORE,
            "unacked_restore_throttle": 1,
            "socket_timeout": 10.0,
            "socket_keepalive": True,
        },
    )
    return celery


def connect(url: str, patience: float = 5.0) -> Redis:
    """A client for our own keys; it fails after `patience` seconds where Redis does not answer, and the next
    call tries again.
    """
    retry = Retry(NoBackoff(), 1)
    client: Redis = Redis.from_url(
        url, decode_responses=True, socket_timeout=patience, socket_connect_timeout=patience, retry=retry
    )
    return client


def held(redis: Any, node: str, began: float) -> float:
    """Seconds for which a node (with its queue's name) has had a run: until now or, where it has vanished,
    until it was last seen. What it did after that nobody knows, and nobody pays for.
    """
    now, seen = broker_time(redis), redis.zscore(SEEN, node)
    gone = seen is not None and seen < now - ALIVE
    return max(0.0, (seen if gone else now) - began)


def broker_time(redis: Any) -> float:
    """The time of Redis, which all hosts share, seconds."""
    seconds, microseconds = redis.time()
    return float(seconds + microseconds / 1e6)
