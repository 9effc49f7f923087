# One file for every image: with and without a worker, CUDA, ROCm or CPU, and on top of somebody's inference image.
#
#   docker build -t faultbook .                       service and worker; torch as the index has it (CUDA)
#   docker build -t faultbook --target service .      records, lookup, pages, level `checks`: no torch
#   docker build -t faultbook --target upstream --build-arg BASE_IMAGE=<your sglang image> .
#
# BASE_IMAGE    Debian or Ubuntu, with Python 3.11 or newer or an apt that has it. Pin it by digest here:
#               --build-arg BASE_IMAGE=python:3.12-slim-bookworm@sha256:…. torch's CUDA and ROCm builds bring their own
#               libraries and need only the host's driver, so a CUDA or ROCm base is a choice, not a need.
# TORCH_INDEX   package index for torch alone: of its CPU builds (several GB less), or of its ROCm builds
# TORCH_SPEC, TRITON_SPEC   requirements (or mounted wheels' paths) instead of the pins in requirements/torch.txt
# INDEX_PACKAGES   packages whose errors the image knows from the start, pinned (sglang==0.5.23) or current; empty: none
# EXTRAS        further extras of pyproject.toml between spaces, such as telemetry
# UPSTREAM_PYTHON  target `upstream`: the base image's interpreter that imports sglang
# PIP_CERT      where the build finds a certificate bundle, for a proxy that re-signs; mount it with
#               `--secret id=ca,src=bundle.pem --build-arg PIP_CERT=/run/secrets/ca`: neither stays in the image
# FAULTBOOK_COMMIT   $(git rev-parse HEAD): the commit that records of our own checks link to
ARG BASE_IMAGE=python:3.12-slim-bookworm

FROM ${BASE_IMAGE} AS base
# Of the build: an inference image may name another. What runs is not root.
# hadolint ignore=DL3002
USER 0:0
ENV PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# Versions follow the base image's own distribution.
# hadolint ignore=DL3008
RUN if ! python3 -c 'import ensurepip, venv'; then \
      apt-get update \
      && apt-get install -y --no-install-recommends python3 python3-venv \
      && rm -rf /var/lib/apt/lists/*; \
    fi \
    && python3 -c 'import sys; sys.exit(sys.version_info < (3, 11) and "BASE_IMAGE needs Python 3.11 or newer")'

# --- what is installed, before the sources: a change of code rebuilds none of it
FROM base AS service-packages
ARG PIP_CERT
ARG EXTRAS
ENV PIP_NO_CACHE_DIR=1 PIP_PROGRESS_BAR=off PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /build
COPY pyproject.toml ./
COPY requirements requirements
# The cluster's client is small, and one image then serves alone and with a broker.
RUN --mount=type=secret,id=ca \
    python3 -m venv /opt/faultbook \
    && python3 requirements/list.py cluster ${EXTRAS} > service.txt \
    && /opt/faultbook/bin/pip install -c requirements/constraints.txt -r service.txt

FROM service-packages AS worker-packages
ARG PIP_CERT
ARG TORCH_INDEX
ARG TORCH_SPEC
ARG TRITON_SPEC
RUN --mount=type=secret,id=ca \
    python3 requirements/list.py cluster worker > worker.txt \
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

# --- what packages of GPU hosts raise: texts and places, no code. A package that cannot be had fails the build: what
# an image knows is what was asked for.
FROM service-packages AS snapshots
ARG PIP_CERT
ARG INDEX_PACKAGES="sglang vllm torch triton flashinfer-python transformers"
COPY --from=wheel /wheels /wheels
RUN --mount=type=secret,id=ca \
    mkdir /snapshots \
    && if [ -n "${INDEX_PACKAGES}" ]; then \
         export FAULTBOOK_DATA=/build/data \
         && /opt/faultbook/bin/pip install --no-deps --no-index /wheels/*.whl \
         && for package in ${INDEX_PACKAGES}; do \
              /opt/faultbook/bin/faultbook index --no-code "${package}" || exit 1; \
            done \
         && /opt/faultbook/bin/faultbook bundle export /snapshots/snapshots.tar \
         && sha256sum /snapshots/snapshots.tar > /snapshots/snapshots.sha256 \
         && rm -r "${FAULTBOOK_DATA}"; \
       fi

# --- what runs
FROM base AS runtime
RUN groupadd --gid 10001 faultbook \
    && useradd --uid 10001 --gid 10001 --home-dir /var/lib/faultbook --no-create-home --shell /usr/sbin/nologin faultbook \
    && install -d -o 10001 -g 10001 /var/lib/faultbook
# Everything that is written goes below the data folder: HOME is where drivers and compilers keep their caches.
ENV PATH=/opt/faultbook/bin:$PATH \
    HOME=/var/lib/faultbook \
    FAULTBOOK_HOST=0.0.0.0 \
    FAULTBOOK_PORT=8000 \
    FAULTBOOK_DATA=/var/lib/faultbook
WORKDIR /var/lib/faultbook
VOLUME /var/lib/faultbook
EXPOSE 8000
STOPSIGNAL SIGTERM
COPY --chmod=755 deploy/image/backup deploy/image/healthy deploy/image/start /usr/local/bin/
HEALTHCHECK --interval=15s --timeout=10s --start-period=60s --retries=3 CMD ["healthy"]
ENTRYPOINT ["start"]
CMD ["serve"]

FROM runtime AS service
COPY --from=service-packages /opt/faultbook /opt/faultbook
COPY --from=wheel /wheels /wheels
RUN pip install --no-cache-dir --no-deps --no-index /wheels/*.whl
COPY --from=snapshots /snapshots /usr/share/faultbook
ARG FAULTBOOK_COMMIT=""
ENV FAULTBOOK_COMMIT=${FAULTBOOK_COMMIT}
LABEL org.opencontainers.image.title="Faultbook" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.revision="${FAULTBOOK_COMMIT}"
USER 10001:10001

FROM runtime AS worker-base
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
COPY --from=snapshots /snapshots /usr/share/faultbook
ARG FAULTBOOK_COMMIT=""
ENV FAULTBOOK_COMMIT=${FAULTBOOK_COMMIT}
LABEL org.opencontainers.image.title="Faultbook" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.revision="${FAULTBOOK_COMMIT}"
USER 10001:10001

# Faultbook beside an inference engine: each in its own environment, since both have a package named `kernels`.
FROM worker-base AS upstream
ARG UPSTREAM_PYTHON=/usr/bin/python3
ARG UPSTREAM_MODULE=sglang
# As the user that will run it: an engine below /root is one that the worker cannot read.
RUN "${UPSTREAM_PYTHON}" -c "import importlib.util as u, sys; \
sys.exit(u.find_spec('${UPSTREAM_MODULE}') is None and '${UPSTREAM_PYTHON} has no module ${UPSTREAM_MODULE}: set UPSTREAM_PYTHON')"
ENV FAULTBOOK_UPSTREAM_PYTHON=${UPSTREAM_PYTHON}

FROM worker-base AS worker
