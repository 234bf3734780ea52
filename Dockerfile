# The image of the manager: one binary, no shell, no root.
#
#   docker build -t nodewright .
FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
RUN cargo build --release --locked --package nodewright \
 && cp target/release/nodewright /nodewright

FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /nodewright /nodewright
USER 65532:65532
ENTRYPOINT ["/nodewright"]
