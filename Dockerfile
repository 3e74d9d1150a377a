# One static binary, the licences of what is in it, and nothing else: no shell (preStop hooks that
# fail harmlessly today would start to delete sockets), no library, no CA certificate.
#
#   docker buildx build --platform linux/amd64,linux/arm64 --tag csi-node-driver-registrar .
#
# It compiles on the builder's own architecture and links for the image's.

# For an SBOM of the crates, which do not show in the finished image.
ARG BUILDKIT_SBOM_SCAN_CONTEXT=true

FROM --platform=$BUILDPLATFORM rust:1.95-slim-bookworm AS build
ARG TARGETARCH
# The recommended package of a cross compiler is its C library.
RUN case "$TARGETARCH" in \
        amd64) rust=x86_64-unknown-linux-gnu gnu=x86_64-linux-gnu ;; \
        arm64) rust=aarch64-unknown-linux-gnu gnu=aarch64-linux-gnu ;; \
        arm) rust=armv7-unknown-linux-gnueabihf gnu=arm-linux-gnueabihf ;; \
        ppc64le) rust=powerpc64le-unknown-linux-gnu gnu=powerpc64le-linux-gnu ;; \
        s390x) rust=s390x-unknown-linux-gnu gnu=s390x-linux-gnu ;; \
        *) echo "no image for the architecture '$TARGETARCH'" >&2; exit 1 ;; \
    esac \
    && apt-get update && apt-get install --yes "gcc-$(echo "$gnu" | tr _ -)" \
    && rustup target add "$rust" \
    && printf '[build]\ntarget = "%s"\nrustflags = ["-Clinker=%s-gcc", %s]\n' "$rust" "$gnu" \
        '"-Ctarget-feature=+crt-static", "-Crelocation-model=static"' > "$CARGO_HOME/config.toml" \
    && ln -s "/src/target/$rust/release" /release
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --locked --release \
    && mkdir -p /image/usr/bin /image/licenses \
    && cp /release/csi-node-driver-registrar /image/ \
    && cp LICENSE docs/third-party-licenses.txt /usr/share/common-licenses/LGPL-2.1 /image/licenses/
# The paths of other builds of the sidecar, which manifests name.
RUN ln -s csi-node-driver-registrar /image/node-driver-registrar \
    && ln -s ../../csi-node-driver-registrar /image/usr/bin/csi-node-driver-registrar

FROM scratch
ARG VERSION
ARG REVISION
LABEL org.opencontainers.image.title="csi-node-driver-registrar" \
      org.opencontainers.image.description="Registers a CSI driver with the kubelet" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION"
COPY --from=build /image /
# The kubelet's directories are root's.
USER 0:0
ENTRYPOINT ["/csi-node-driver-registrar"]
