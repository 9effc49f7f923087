# One file, CPU and CUDA, with and without a worker.
#
#   docker build -t faultbook .                                 service and worker; torch as the index has it (CUDA)
#   docker build -t faultbook --build-arg TORCH_INDEX=… .       the same with another torch, e.g. a CPU build
#   docker build -t faultbook --target service .                records, lookup, pages, level `checks`: no torch
#
# BASE_IMAGE    Debian or Ubuntu, with Python 3.11 or newer or an apt that has it; a CUDA image serves as well, but
#               torch's CUDA build brings its own libraries and needs only the host's driver.
# TORCH_SPEC, TRITON_SPEC   requirements (or mounted wheels' paths) instead of the pins in requirements/torch.txt
# TORCH_INDEX   package index for torch alone
# PIP_CERT      where the build finds a certificate bundle, for a proxy that re-signs; mount it with
#               `--secret id=ca,src=bundle.pem --build-arg PIP_CERT=/run/secrets/ca`: neither stays in the image
# FAULTBOOK_INDEX   packages whose errors the image knows from the start; empty: none
# FAULTBOOK_COMMIT   $(git rev-parse HEAD): the commit that records of our own checks link to
ARG BASE_IMAGE=python:3.12-slim-bookworm

FROM ${BASE_IMAGE} AS base
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
ENV PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# Versions follow the base image's own distribution.
# hadolint ignore=DL3008
RUN if ! python3 -c 'import ensurepip, venv' 2>/dev/null; then \
      apt-get update \
      && apt-get install -y --no-install-recommends python3 python3-venv \
      && rm -rf /var/lib/apt/lists/*; \
    fi \
    && python3 -c 'import sys; sys.exit(sys.version_info < (3, 11) and "BASE_IMAGE needs Python 3.11 or newer")'

# --- what is installed, before the sources: a change of code rebuilds none of it
FROM base AS service-packages
ARG PIP_CERT
ENV PIP_NO_CACHE_DIR=1 PIP_PROGRESS_BAR=off PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /build
COPY pyproject.toml ./
COPY requirements requirements
RUN --mount=type=secret,id=ca \
    python3 -m venv /opt/faultbook \
    && python3 requirements/list.py > service.txt \
    && /opt/faultbook/bin/pip install -c requirements/constraints.txt -r service.txt

FROM service-packages AS worker-packages
ARG PIP_CERT
ARG TORCH_INDEX
ARG TORCH_SPEC
ARG TRITON_SPEC
RUN --mount=type=secret,id=ca \
    python3 requirements/list.py worker > worker.txt \
    && torch="${TORCH_SPEC:-$(grep '^torch==' requirements/torch.txt)}" \
    && triton="${TRITON_SPEC:-$(grep '^triton==' requirements/torch.txt)}" \
    && /opt/faultbook/bin/pip install -c requirements/constraints.txt \
         ${TORCH_INDEX:+--no-deps --index-url "${TORCH_INDEX}"} "${torch}" \
    && /opt/faultbook/bin/pip install -c requirements/constraints.txt "${triton}" -r worker.txt

FROM service-packages AS wheel
ARG PIP_CERT
COPY . .
RUN --mount=type=secret,id=ca \
    /opt/faultbook/bin/pip wheel --no-deps --wheel-dir /wheels .

# --- what packages of GPU hosts raise: texts and places, no code; what cannot be fetched is said and left out
FROM service-packages AS snapshots
ARG PIP_CERT
ARG FAULTBOOK_INDEX="sglang vllm torch triton flashinfer-python transformers"
ENV FAULTBOOK_DATA=/var/lib/faultbook
COPY --from=wheel /wheels /wheels
RUN --mount=type=secret,id=ca \
    mkdir -p "${FAULTBOOK_DATA}/snapshots" \
    && /opt/faultbook/bin/pip install --no-deps --no-index /wheels/*.whl \
    && for package in ${FAULTBOOK_INDEX}; do \
         /opt/faultbook/bin/faultbook index --no-code "${package}" || echo "not indexed: ${package}"; \
       done

# --- what runs
FROM base AS runtime
RUN groupadd --gid 10001 faultbook \
    && useradd --uid 10001 --gid 10001 --home-dir /var/lib/faultbook --no-create-home --shell /usr/sbin/nologin faultbook \
    && install -d -o 10001 -g 10001 /var/lib/faultbook
ENV PATH=/opt/faultbook/bin:$PATH \
    FAULTBOOK_HOST=0.0.0.0 \
    FAULTBOOK_PORT=8000 \
    FAULTBOOK_DATA=/var/lib/faultbook
WORKDIR /var/lib/faultbook
VOLUME /var/lib/faultbook
EXPOSE 8000
STOPSIGNAL SIGTERM
# Loopback even where the environment names a proxy.
HEALTHCHECK --interval=15s --timeout=5s --start-period=30s --retries=3 CMD ["python3", "-c", "import os, urllib.request as u; u.build_opener(u.ProxyHandler({})).open(f'http://127.0.0.1:{os.environ[\"FAULTBOOK_PORT\"]}/healthz', timeout=4)"]
ENTRYPOINT ["faultbook"]
CMD ["serve"]

FROM runtime AS service
COPY --from=service-packages /opt/faultbook /opt/faultbook
COPY --from=wheel /wheels /wheels
RUN pip install --no-cache-dir --no-deps --no-index /wheels/*.whl
COPY --from=snapshots --chown=10001:10001 /var/lib/faultbook/snapshots /var/lib/faultbook/snapshots
ARG FAULTBOOK_COMMIT
ENV FAULTBOOK_COMMIT=${FAULTBOOK_COMMIT}
USER 10001:10001

FROM runtime AS worker
# Triton compiles its launchers with the host's C compiler, against Python's headers, the first time a kernel runs.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && if ! test -f "$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h"; then \
         apt-get install -y --no-install-recommends libpython3-dev; \
       fi \
    && rm -rf /var/lib/apt/lists/*
# On the data volume: kept across restarts, and on a file system that may hold executable code.
ENV TRITON_CACHE_DIR=/var/lib/faultbook/triton \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=worker-packages /opt/faultbook /opt/faultbook
COPY --from=wheel /wheels /wheels
RUN pip install --no-cache-dir --no-deps --no-index /wheels/*.whl
COPY --from=snapshots --chown=10001:10001 /var/lib/faultbook/snapshots /var/lib/faultbook/snapshots
ARG FAULTBOOK_COMMIT
ENV FAULTBOOK_COMMIT=${FAULTBOOK_COMMIT}
USER 10001:10001
