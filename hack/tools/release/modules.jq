# Makes the parts of a program in Go, for sbom.jq, of what cyclonedx-gomod prints (the input). A module that a replacement takes from a
# folder of this repository has the folder's name there: it gets its own, $replaced, and like the program no purl, as nobody can
# fetch it.

def renamed: if startswith("pkg:golang/../@") then $replaced else . end;

.metadata.component."bom-ref" as $root
| {
  root: $root,
  components: ([.metadata.component | del(.purl)]
    + (.components | map(if .name == "../" then {type, "bom-ref": $replaced, name: $replaced, version: $version} else . end))),
  dependencies: (.dependencies
    | map({ref: (.ref | renamed)} + (if .dependsOn then {dependsOn: (.dependsOn | map(renamed) | sort)} else {} end)))
}
