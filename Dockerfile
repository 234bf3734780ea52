# The image of the manager: one static binary, no shell, no root.
#
#   docker build -t nodewright .
#
# hack/image.sh makes the same image without a registry, and hack/images.sh those of a release. The image of the compiler is pinned by the digest of its index, for
# amd64 and arm64. To move on:
#
#   docker buildx imagetools inspect rust:1.95.0-bookworm
FROM rust:1.95.0-bookworm@sha256:6258907abe69656e41cd992e0b705cdcfabcbbe3db374f92ed2d47121282d4a1 AS build
WORKDIR /src
COPY . .
# With --target, build scripts and macros are not linked statically.
RUN target=$(uname -m)-unknown-linux-gnu \
 && cargo build --release --locked --package nodewright --target "$target" \
    --config 'build.rustflags = ["-C", "target-feature=+crt-static"]' \
 && cp "target/$target/release/nodewright" /nodewright

FROM scratch
COPY --from=build /nodewright /nodewright
# One arena for all threads: see docs/decisions/0009-memory.md.
ENV MALLOC_ARENA_MAX=1
USER 65532:65532
ENTRYPOINT ["/nodewright"]
