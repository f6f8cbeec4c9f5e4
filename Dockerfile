# Four images from one file: sidecar, operator, experiment, and server (the demo's).
#
#   make images                                        all four, with buildah or docker
#   docker build --target sidecar -t retuned/sidecar . one of them
#
# What changes seldom comes first: the system, the locked dependencies, our own code. So a new version of the code is
# a layer of a few megabytes. Nothing is fetched that a lock does not name with its hash.
#
#   BASE_IMAGE  Debian or Ubuntu; its own python3 (3.11 or newer) is taken if it has one
#   TORCH       none; locked (requirements/torch.txt, about 5 GB); base (the PyTorch that BASE_IMAGE has)
#
# Behind a proxy of one's own, two secrets reach the installer and stay out of the image: `pip` (a pip.conf) and
# `certificates` (a CA bundle, which that file names). scripts/images makes both from the environment.
ARG BASE_IMAGE=docker.io/library/debian:bookworm-slim

FROM ${BASE_IMAGE} AS base
# Versions of Debian's packages are the base image's business: pinned here, they vanish from its mirrors in weeks.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates $(command -v python3 > /dev/null || echo python3) \
    && rm -rf /var/cache/apt /var/lib/apt/lists /var/log/apt /var/log/dpkg.log \
    && python3 -c 'import sys; sys.exit(sys.version_info < (3, 11) and "needs Python 3.11 or newer")'
ENV PATH=/opt/retuned/venv/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1

# --- the tools that install; they stay out of the images ----------------------------------------------------------------
FROM base AS build
RUN apt-get update \
    && apt-get install --yes --no-install-recommends $(python3 -c 'import ensurepip' 2> /dev/null || echo python3-venv) \
    && rm -rf /var/cache/apt /var/lib/apt/lists /var/log/apt /var/log/dpkg.log
ENV PIP_CONFIG_FILE=/run/secrets/pip \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_ROOT_USER_ACTION=ignore
COPY requirements/build.txt /build/
RUN --mount=type=secret,id=pip --mount=type=secret,id=certificates \
    python3 -m venv /build/venv \
    && /build/venv/bin/pip install --quiet --require-hashes --requirement /build/build.txt \
    && python3 -m venv --without-pip /opt/retuned/venv

# --- dependencies: one stage an image ----------------------------------------------------------------------------------
FROM build AS sidecar-packages
COPY requirements/sidecar.txt /build/
RUN --mount=type=secret,id=pip --mount=type=secret,id=certificates \
    /build/venv/bin/pip --python /opt/retuned/venv/bin/python install --quiet --require-hashes \
      --requirement /build/sidecar.txt \
    && find /opt/retuned/venv/lib -path '*/numpy/*' -name tests -type d -prune -exec rm -r {} +

FROM build AS operator-packages
COPY requirements/operator.txt /build/
RUN --mount=type=secret,id=pip --mount=type=secret,id=certificates \
    /build/venv/bin/pip --python /opt/retuned/venv/bin/python install --quiet --require-hashes \
      --requirement /build/operator.txt

FROM build AS experiment-packages
ARG TORCH=none
COPY requirements/sidecar.txt requirements/torch.txt /build/
RUN --mount=type=secret,id=pip --mount=type=secret,id=certificates \
    /build/venv/bin/pip --python /opt/retuned/venv/bin/python install --quiet --require-hashes \
      --requirement /build/sidecar.txt \
    && case "$TORCH" in \
         none) ;; \
         locked) /build/venv/bin/pip --python /opt/retuned/venv/bin/python install --quiet --require-hashes \
                   --requirement /build/torch.txt ;; \
         base) PATH=${PATH#/opt/retuned/venv/bin:} python3 -c \
                 'import pathlib, torch; print(pathlib.Path(torch.__file__).parents[1])' \
                 > "$(echo /opt/retuned/venv/lib/python3*/site-packages)/base-torch.pth" ;; \
         *) echo "TORCH is none, locked or base, not '$TORCH'" >&2; exit 2 ;; \
       esac

# --- our own code -------------------------------------------------------------------------------------------------------
FROM build AS code
WORKDIR /build/source
COPY LICENSE README.md pyproject.toml ./
COPY daemon daemon
COPY operators operators
COPY policies/laptop-demo.yaml policies/
RUN /build/venv/bin/python -m hatchling build --target wheel --directory /build/wheels \
    && /build/venv/bin/pip --python /opt/retuned/venv/bin/python install --quiet --no-deps --no-index /build/wheels/*.whl \
    && mkdir -p /delivery/retuned /child \
    && cp -r /opt/retuned/venv/lib/python3*/site-packages/retuned/__init__.py \
         /opt/retuned/venv/lib/python3*/site-packages/retuned/runtime /delivery/retuned/ \
    && cp -r /delivery/retuned /child/ \
    && cp -r /opt/retuned/venv/lib/python3*/site-packages/retuned/tunables /child/retuned/ \
    && find /delivery /child -name __pycache__ -prune -exec rm -r {} +

# --- the images: any user, any root file system that cannot be written ----------------------------------------------------
FROM base AS operator
LABEL org.opencontainers.image.title="retuned-operator" org.opencontainers.image.licenses="Apache-2.0"
COPY --from=operator-packages /opt/retuned /opt/retuned
COPY --from=code /opt/retuned /opt/retuned
USER 65532:65532
ENTRYPOINT ["retuned-operator"]

FROM base AS compilers
ARG TORCH=none
# g++ compiles variants for CPUs; Triton compiles its launchers and needs Python's headers for that.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ $([ "$TORCH" = none ] || echo python3-dev) \
    && rm -rf /var/cache/apt /var/lib/apt/lists /var/log/apt /var/log/dpkg.log
COPY --from=experiment-packages /opt/retuned /opt/retuned
COPY --from=code /opt/retuned /opt/retuned
USER 65532:65532

FROM compilers AS experiment
LABEL org.opencontainers.image.title="retuned-experiment" org.opencontainers.image.licenses="Apache-2.0"
# What an init container copies for the server's container beside the lab: for whatever Python runs there.
COPY --from=code /child /opt/retuned/server
ENTRYPOINT ["python", "-m", "retuned.experiment"]

FROM compilers AS server
LABEL org.opencontainers.image.title="retuned-server" org.opencontainers.image.licenses="Apache-2.0"
EXPOSE 8000
ENTRYPOINT ["python", "-m", "retuned.demo.server"]
CMD ["--host=0.0.0.0", "--port=8000", "--socket-dir=/tmp/sockets", "--cache-dir=/tmp/cache"]

# Last, so that a build without a target makes the image that most pods need.
FROM base AS sidecar
LABEL org.opencontainers.image.title="retuned-sidecar" org.opencontainers.image.licenses="Apache-2.0"
COPY --from=sidecar-packages /opt/retuned /opt/retuned
COPY --from=code /opt/retuned /opt/retuned
# What an init container copies into servers' pods: standard library only, for whatever Python runs there.
COPY --from=code /delivery /opt/retuned/runtime
USER 65532:65532
ENTRYPOINT ["retuned"]
CMD ["sidecar"]
