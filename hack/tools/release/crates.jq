# Makes the parts of a program in Rust, for sbom.jq, of the list that cargo-auditable has put into it (the input). $metadata is what
# cargo metadata prints, for the licences, $lock the text of Cargo.lock, for the checksums,
# and $rust the version of Rust. Crates that run at build time are not
# in the program. Rust's own libraries are.

def ref: if .source == "crates.io" then "pkg:cargo/\(.name)@\(.version)" else "\(.name)@\(.version)" end;

($metadata.packages | map({key: "\(.name) \(.version)", value: .license}) | from_entries) as $licenses
| ([$lock | scan("name = \"([^\"]+)\"\nversion = \"([^\"]+)\"\nsource = \"[^\"]+\"\nchecksum = \"([0-9a-f]+)\"")]
  | map({key: "\(.[0]) \(.[1])", value: .[2]}) | from_entries) as $checksums
| .packages as $all
| "rust@\($rust)" as $std
| [$all[] | select(.kind != "build")] as $linked
| {
  root: ($linked[] | select(.root) | ref),
  components: ([$linked[] | . as $crate | "\(.name) \(.version)" as $key | {
      type: (if .root then "application" else "library" end), "bom-ref": ref, name, version
    }
    + (if .source == "crates.io" then {purl: ref} else {} end)
    + (if $licenses[$key] then {licenses: [{expression: ($licenses[$key] | gsub("/"; " OR "))}]} else {} end)
    + (if $checksums[$key] then {hashes: [{alg: "SHA-256", content: $checksums[$key]}]} else {} end)
  ] + [{
    type: "library", "bom-ref": $std, name: "rust", version: $rust, description: "Rust's standard library",
    licenses: [{expression: "MIT OR Apache-2.0"}], cpe: "cpe:2.3:a:rust-lang:rust:\($rust):*:*:*:*:*:*:*"
  }]),
  dependencies: ([$linked[] | {
    ref: ref,
    dependsOn: ([.dependencies // [] | .[] | $all[.] | select(.kind != "build") | ref] + [$std] | unique)
  }] + [{ref: $std}])
}
