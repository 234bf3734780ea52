# The image of the manager: one binary, no shell, no root.
#
#   docker build -t nodewright .
# Both images are pinned by the digest of their index, for amd64 and arm64. To move on:
#
#   docker buildx imagetools inspect rust:1.95.0-bookworm
FROM rust:1.95.0-bookworm@sha256:6258907abe69656e41cd992e0b705cdcfabcbbe3db374f92ed2d47121282d4a1 AS build
WORKDIR /src
COPY . .
RUN cargo build --release --locked --package nodewright \
 && cp target/release/nodewright /nodewright

FROM gcr.io/distroless/cc-debian12:nonroot@sha256:9dac0a79194e45a7da0158a9c6da57b217585af0786db3845d1f0ec1a0dd182f
COPY --from=build /nodewright /nodewright
USER 65532:65532
ENTRYPOINT ["/nodewright"]
