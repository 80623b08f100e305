# The one image of gateway, operator and engine-sim: `ballast SUBCOMMAND`.
#
# The build context is a folder that `python -m testbed context` fills (see docs/testbed.md):
#   requirements.txt  the locked dependencies with their hashes      wheels/  their wheels      dist/  ballast's own wheel
# so the build itself needs no network. `make images` builds with buildah; with Docker:
#   docker build -f Dockerfile -t ballast:dev "$(make -s image-context)"
ARG BASE=python:3.11-slim
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
