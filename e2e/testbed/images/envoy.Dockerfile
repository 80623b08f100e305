# Envoy for the data plane that Envoy Gateway makes; its pods call `envoy` by name.
ARG BASE
FROM ${BASE}
COPY envoy /usr/local/bin/envoy
USER 65532:65532
ENTRYPOINT ["envoy"]
