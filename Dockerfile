# Images of Headrace, docs/container-image.md; `make images` builds the first without a daemon:
#   docker build --target cpu --tag headrace:0.1.0 .           OpenVINO and ONNX Runtime
#   docker build --target cuda --tag headrace:0.1.0-cuda .     torch, ONNX Runtime, TensorRT and vLLM
#                                                              for NVIDIA's GPUs, linux/amd64 alone
#
# Debian 12 has Python 3.11, the one that all tests run on. A tag may be moved; its digest not:
#   docker buildx imagetools inspect debian:12.15-slim --format '{{.Manifest.Digest}}'
#   docker build --build-arg BASE=debian:12.15-slim@sha256:... --target cpu .
ARG BASE=debian:12.15-slim

# What runs: Python, and what KubeRay's probes and commands are made of. No shell of this image's
# needs a password, so nothing in it may raise its rights.
FROM ${BASE} AS system
# The time of every file, in seconds since 1970. useradd notes its day, and where it is set Debian's
# Python compiles with hashes of sources instead of their times, which change: so two builds are
# equal, and nothing is compiled again whenever a process starts.
ARG SOURCE_DATE_EPOCH
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends \
        bash ca-certificates grep python-is-python3 python3 wget \
    && apt-get clean \
    && rm -rf /var/lib/apt/lists/* /var/log/*.log /var/log/apt /var/cache/ldconfig \
    && useradd --uid 10001 --user-group --no-create-home --home-dir /tmp \
        --shell /usr/sbin/nologin headrace \
    && install --directory --owner 10001 --group 0 --mode 0775 /var/cache/headrace \
    && find / -xdev -type f -perm /6000 -exec chmod ug-s '{}' +

# What builds it, and makes C of the scheduling core (docs/decisions/0036; what
# the compiler needs of ours lies in /image, too). Packages go to
# /image/usr/local, thus where Debian's Python looks for them without a word of the environment's:
# KubeRay starts Ray by a login shell, which sets a PATH of its own.
FROM system AS build
ARG SOURCE_DATE_EPOCH
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev python3-dev python3-pip \
    && rm -rf /var/lib/apt/lists/*
# What Python compiles names no time (`unchecked-hash`), since an image's sources never change; `-f`,
# because what building Headrace imports was compiled before, with times.
ENV PIP_NO_CACHE_DIR=1 PIP_BREAK_SYSTEM_PACKAGES=1 PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_ROOT_USER_ACTION=ignore \
    COMPILE="python3 -m compileall -q -f -j0 --invalidation-mode unchecked-hash -s /image /image/usr/local"
WORKDIR /src
COPY requirements/build.lock requirements/compiler.lock requirements/
RUN python3 -m pip install --no-deps --require-hashes \
        -r requirements/build.lock -r requirements/compiler.lock

FROM build AS build-cpu
COPY requirements/runtime.lock requirements/stores.lock requirements/example.lock requirements/
RUN python3 -m pip install --root /image --no-compile --ignore-installed --no-deps --require-hashes \
        -r requirements/runtime.lock -r requirements/stores.lock -r requirements/example.lock
COPY . .
RUN HEADRACE_COMPILE=1 PYTHONPATH=/image/usr/local/lib/python3.11/dist-packages \
        python3 -m pip install --root /image --no-compile --no-deps --no-build-isolation . \
    && { ${COMPILE} || true; }

FROM build AS build-cuda
COPY requirements/cuda.lock requirements/
RUN python3 -m pip install --root /image --no-compile --ignore-installed --no-deps --require-hashes \
        -r requirements/build.lock -r requirements/cuda.lock
COPY . .
RUN HEADRACE_COMPILE=1 PYTHONPATH=/image/usr/local/lib/python3.11/dist-packages \
        python3 -m pip install --root /image --no-compile --no-deps --no-build-isolation . \
    && { ${COMPILE} || true; }

# All that both have. USER, HOME: Ray asks for the user's, which a pod's runAsUser may
# not have; such a user is of group 0, as OpenShift's are.
FROM system AS runtime
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="Headrace" \
      org.opencontainers.image.description="Many models behind one length-bucketing router on Ray Serve" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
ENV LANG=C.UTF-8 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 USER=headrace HOME=/tmp
WORKDIR /opt/headrace
EXPOSE 8000
# KubeRay probes Ray, and `headrace serve` answers /readyz; which of them it is, an image can't know.
HEALTHCHECK NONE
CMD ["headrace", "--help"]

FROM runtime AS cpu
COPY --from=build-cpu /image/usr/local /usr/local
USER 10001:10001

# Triton, which torch and vLLM compile kernels with, calls a C compiler with Python's headers. The
# driver's own libraries come from the node, GKE's to /usr/local/nvidia; ONNX Runtime finds the rest by
# LD_LIBRARY_PATH.
FROM runtime AS cuda
ARG SOURCE_DATE_EPOCH
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev python3-dev \
    && apt-get clean \
    && rm -rf /var/lib/apt/lists/* /var/log/*.log /var/log/apt /var/cache/ldconfig \
    && find / -xdev -type f -perm /6000 -exec chmod ug-s '{}' +
COPY --from=build-cuda /image/usr/local /usr/local
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    LD_LIBRARY_PATH=/usr/local/lib/python3.11/dist-packages/nvidia/cu13/lib:/usr/local/lib/python3.11/dist-packages/nvidia/cudnn/lib:/usr/local/nvidia/lib64
USER 10001:10001
