# Makes the CycloneDX SBOM of an image. Called by hack/lib-sbom.sh with:
#   $image, $version, $arch, $epoch   the image, and the seconds since 1970 at which it was made
#   $tool                             what has found the parts of the program, as {name, version}
#   $parts                            the program: {root, components, dependencies}, by crates.jq or modules.jq
#   $packages                         what else is in the image: [{name, version, source, arch, distro}]
# There is no serial number, which would differ from build to build.

def package_component:
  "pkg:deb/\(.distro | sub("-.*"; ""))/\(.name)@\(.version | @uri)?arch=\(.arch)&distro=\(.distro)&upstream=\(.source)" as $purl
  | {type: "library", "bom-ref": $purl, name, version, purl: $purl};

($packages | map(package_component)) as $others
| {
  bomFormat: "CycloneDX", specVersion: "1.6", version: 1,
  metadata: {
    timestamp: ($epoch | todate),
    tools: {components: [$tool + {type: "application"}]},
    component: {type: "container", "bom-ref": $image, name: $image, version: $version},
    properties: [{name: "nodewright:architecture", value: $arch}]
  },
  components: ($parts.components + $others | sort_by(."bom-ref")),
  dependencies: ([{ref: $image, dependsOn: ([$parts.root] + ($others | map(."bom-ref")) | sort)}]
    + ($parts.dependencies | sort_by(.ref)))
}
