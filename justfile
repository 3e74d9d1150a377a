# The steps of a developer's day; `just` alone lists them. `.ci/run` is all that has to be green.

static_target := arch() + "-unknown-linux-gnu"

_default:
    @{{just_executable()}} --list

# formatting and lints
lint:
    cargo fmt --check
    cargo fmt --check --manifest-path tests/interop/krustlet/Cargo.toml
    cargo fmt --check --manifest-path tests/fuzz/Cargo.toml
    cargo clippy --all-targets --locked -- -D warnings
    cargo clippy --all-targets --all-features --locked -- -D warnings

# all tests
test:
    cargo test --locked
    cargo test --locked --all-features --test it http::

# the whole story in a temp folder: driver, registrar, kubelet stand-in
demo:
    cargo test --locked --test demo

# the binary of the image: one static file, no loader, no library
static:
    RUSTFLAGS="-C target-feature=+crt-static -C relocation-model=static" \
        cargo build --locked --release --target {{static_target}}

# the Windows binary, checked and cross-built (needs gcc-mingw-w64-x86-64; .ci/windows names the rest)
windows:
    .ci/windows

# the release build in 8 MiB and a hundredth of a CPU (needs root)
cgroup:
    cargo build --locked --release
    REGISTRAR_BIN={{justfile_directory()}}/target/release/csi-node-driver-registrar \
        cargo test --locked --test it cgroup:: -- --ignored --nocapture

# with kubelets of two minor releases and other gRPC libraries (needs Go; skips those without Python or Node)
interop *arguments:
    cargo build --locked --release
    REGISTRAR_BIN={{justfile_directory()}}/target/release/csi-node-driver-registrar \
        cargo bench --locked --profile dev --bench interop -- {{arguments}}

# also with Krustlet and a whole node, its result in docs/interop.md (needs root, etcd and containerd)
interop-full: (interop "full")

# licences, duplicates and sources of the crates
deny:
    cargo deny check bans licenses sources

# each fuzz target for so many seconds (needs cargo-fuzz and a nightly compiler)
fuzz seconds="600":
    for target in authority goflag server; do \
        found=tests/fuzz/target/corpus/$target && mkdir -p $found && \
        cargo +nightly fuzz run --fuzz-dir tests/fuzz $target $found tests/fuzz/corpus/$target -- \
            -max_len=8192 -max_total_time={{seconds}} || exit; \
    done

# the load of years on one process, its result in docs/soak.md
soak:
    cargo bench --locked --bench soak

# the licences of what is in the binary, for the images
licenses:
    UPDATE=1 cargo test --locked --test it licensed -- --include-ignored

# what is in the binary, as CycloneDX
sbom:
    cargo cyclonedx --format json --target {{static_target}} --no-build-deps

# the image of this machine's architecture
image:
    docker buildx build --tag csi-node-driver-registrar:dev --load .

# the manifests, against Kubernetes' schemas (needs kubectl and Python's kubernetes-validate)
manifests:
    kubectl kustomize deploy/example | kubernetes-validate --strict -
    kubernetes-validate --strict deploy/krustlet/*.yaml deploy/windows/*.yaml
