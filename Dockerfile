# The one image of gateway, operator and engine-sim: `ballast SUBCOMMAND`.
#
# The build context is a folder that `python -m testbed context` fills (see docs/testbed.md):
#   requirements.txt  the locked dependencies with their hashes      wheels/  their wheels      dist/  ballast's own wheel
# so the build itself needs no network. `make images` builds with buildah; with Docker:
#   docker build -f Dockerfile -t ballast:dev "$(make -s image-context)"
# By digest: the same release is built on the same base tomorrow. To renew it: docs/releasing.md.
ARG BASE=python:3.11-slim@sha256:9c900dea9e8fb7e16277c179b555cc72d29a352dbc33cff48ad5a0412fd5bfc7
FROM ${BASE}

# Some builders do not look into bind mounts when they look for cached layers: the content's hash is an argument instead.
ARG DEPENDENCIES=unknown
RUN --mount=type=bind,source=.,target=/context \
    : "dependencies ${DEPENDENCIES}" \
    && python3 -m venv /opt/ballast \
    && /opt/ballast/bin/pip install --quiet --no-cache-dir --disable-pip-version-check --no-index --no-deps \
       --require-hashes --find-links /context/wheels --requirement /context/requirements.txt

ARG CODE=unknown
RUN --mount=type=bind,source=.,target=/context \
    : "code ${CODE}" \
    && /opt/ballast/bin/pip install --quiet --no-cache-dir --disable-pip-version-check --no-index --no-deps \
       /context/dist/*.whl \
    && /opt/ballast/bin/python -c 'from ballast_core import kernel; print("decisions by", kernel.name())'

# Compiled files are in the image already; at run time the root file system may be read-only.
ENV PATH=/opt/ballast/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
# A number, so that Kubernetes can check runAsNonRoot without reading /etc/passwd.
USER 65532:65532
WORKDIR /tmp
ENTRYPOINT ["ballast"]

# Last, so that a new revision alone rebuilds nothing.
ARG VERSION=dev
ARG REVISION=unknown
ARG CREATED=unknown
LABEL org.opencontainers.image.title="Ballast" \
      org.opencontainers.image.description="Gateway, operator and engine-sim for prefill/decode-disaggregated vLLM" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}"
