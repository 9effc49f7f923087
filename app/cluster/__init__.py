"""Several hosts: runs are handed out by Celery over Redis, jobs and their results stand in Redis.

    API replica → queue of an architecture (sm90, gfx942, cpu) → `faultbook worker` of such a host → its own
    worker process

Only Redis is shared. Without BROKER_URL nothing of this package is used, and neither celery nor redis is
imported.
"""
