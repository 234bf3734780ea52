#!/usr/bin/env bash
# Makes all files of a release, in one folder, and prints its path: a user needs nothing else, and no clone.
#
#   hack/release.sh [--images DIRECTORY] [--into DIRECTORY] [TAG]
#
# TAG is the tag of the release, such as v0.1.0, and has to be the version of Cargo.toml, which is taken without one. The folder is
# release-VERSION in the target directory, or DIRECTORY, and has:
#   README.md                            what the files are, and how to install
#   PROGRAM.tar, PROGRAM-ARCH.cdx.json   images and their SBOMs, images.txt their names and digests (hack/images.sh)
#   nodewright-VERSION.tgz               the Helm chart
#   nodewright-cluster.yaml, nodewright-aws.yaml, nodewright-azure.yaml, nodewright-kind.yaml, nodewright-plugin.yaml
#                                        objects to apply: those of a cluster, of an installation with a driver, and of the plugin's users
#   kind-cluster.yaml, kind-values.yaml  a cluster of kind for nodewright-kind.yaml, and the same for Helm
#   nodewright-config-VERSION.tar.gz     the kustomize folders and samples, for overlays
#   kubectl-nodewright-OS-ARCH.tar.gz, nodewright.krew.yaml
#                                        the plugin of kubectl, for Linux, and the manifest by which krew installs it
#   SHA256SUMS                           checksums of all
#
# All of them name the released images; the checkout is not changed. Without --images DIRECTORY, in which hack/images.sh has written, it
# makes the images first. NODEWRIGHT_REGISTRY is where images will be, and NODEWRIGHT_DOWNLOADS where the files of the release will
# be. The same sources give the same bytes.
set -euo pipefail
shopt -s inherit_errexit

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR source=lib-go.sh
. "$here/lib-go.sh"
# shellcheck source-path=SCRIPTDIR source=lib-build.sh
. "$here/lib-build.sh"

repository=$(cd "$here/.." && pwd)
target=${CARGO_TARGET_DIR:-$repository/target}
version=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' "$repository/Cargo.toml")
images='' into=$target/release-$version
while [ $# != 0 ]; do
	case $1 in
	--images) images=$(cd "${2:?}" && pwd) && shift 2 ;;
	--into) into=${2:?} && shift 2 ;;
	v[0-9]*)
		[ "$1" = "v$version" ] || die "the tag $1 is not the version of Cargo.toml, $version"
		shift
		;;
	*) takes_no_arguments "$1" ;;
	esac
done
default_registry=$(sed -n 's#^  newName: \(.*\)/[^/]*#\1#p' "$repository/config/default/kustomization.yaml")
registry=${NODEWRIGHT_REGISTRY:-$default_registry}
# Names in registries have no capitals.
registry=${registry,,}
downloads=${NODEWRIGHT_DOWNLOADS:-https://github.com/nodewright/nodewright/releases/download/v$version}

# Packs the directory $1 into the compressed archive $2 under the name $3.
pack() {
	tar -C "$1" --format=gnu --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$epoch" --mode=u=rwX,go=rX \
		--transform="s#^\.#$3#" -c . | gzip -9 --no-name >"$2"
}

# Fills directory $1 with config, with the images of the release.
released_config() {
	local name
	cp -R "$repository/config" "$1"
	sed -i "s#^\( *\(newName\|repository\): \)$default_registry/#\1$registry/#; s#^  newTag: .*#  newTag: $version#" \
		"$1"/{default,kind}/kustomization.yaml "$1/chart/values.yaml" "$1/kind/values.yaml"
	# There the driver for AWS has a name without a registry, for users to fill in.
	sed -i "s#^  newName: nodewright-driver-aws\$#  newName: $registry/nodewright-driver-aws\n  newTag: $version#" \
		"$1/components/driver-aws/kustomization.yaml"
	sed -i "s#^\(version\|appVersion\): .*#\1: $version#" "$1/chart/Chart.yaml"
	for name in default/kustomization.yaml kind/kustomization.yaml components/driver-aws/kustomization.yaml; do
		grep -q "^  newName: $registry/" "$1/$name" && grep -q "^  newTag: $version\$" "$1/$name" ||
			die "config/$name does not name an image of the release: its form has changed"
	done
}

# Writes the objects of the installation with the driver $1 and the image $2, of the folder $3.
installation() {
	mkdir "$3/installation-$1"
	cat >"$3/installation-$1/kustomization.yaml" <<-EOF
		resources: [../default]
		components: [../components/driver]
		images: [{name: nodewright-driver, newName: $2, newTag: $version}]
	EOF
	"$kubectl" kustomize "$3/installation-$1"
}

# Writes what is applied, of the folder $1.
make_objects() {
	"$kubectl" kustomize "$1/cluster" >"$work/nodewright-cluster.yaml"
	installation aws "$registry/nodewright-driver-aws" "$1" >"$work/nodewright-aws.yaml"
	installation azure "$registry/nodewright-driver-azure" "$1" >"$work/nodewright-azure.yaml"
	rm -r "$1"/installation-*
	"$kubectl" kustomize "$1/plugin" >"$work/nodewright-plugin.yaml"
	"$kubectl" kustomize "$1/kind" >"$work/nodewright-kind.yaml"
	cp "$1/kind/cluster.yaml" "$work/kind-cluster.yaml"
	cp "$1/kind/values.yaml" "$work/kind-values.yaml"
}

# Packs the plugin, and writes krew's manifest. There are no archives for macOS: cross-compiling for it needs Apple's SDK.
make_plugin() {
	local arch archives=()
	for arch in amd64 arm64; do
		(cd "$work" && "$here/krew.sh" --pack "linux-$arch" "$images/bin/$arch/kubectl-nodewright")
		archives+=("$work/kubectl-nodewright-linux-$arch.tar.gz")
	done
	"$here/krew.sh" "v$version" "$downloads" "${archives[@]}" >"$work/nodewright.krew.yaml"
}

# Prints what the files are.
readme() {
	cat <<-EOF
		# Nodewright $version

		A Kubernetes controller manager that turns MachineDeployments into virtual machines, and those into nodes.

		\`\`\`console
		sha256sum --check --ignore-missing SHA256SUMS
		kubectl apply --server-side -f nodewright-cluster.yaml    # once for each cluster: CRDs, and policies that guard machines
		kubectl apply --server-side -f nodewright-aws.yaml        # or nodewright-azure.yaml: the manager and a driver
		\`\`\`

		or with Helm:

		\`\`\`console
		helm install nodewright nodewright-$version.tgz --namespace nodewright-system --create-namespace \\
		  --set driver.image.repository=$registry/nodewright-driver-aws --set driver.image.tag=$version
		\`\`\`

		In kind, without an account of a cloud and without a registry:

		\`\`\`console
		kind create cluster --config kind-cluster.yaml
		kind load image-archive nodewright.tar
		kind load image-archive nodewright-driver-local.tar
		kubectl apply --server-side -f nodewright-cluster.yaml
		kubectl apply --server-side -f nodewright-kind.yaml
		kubectl -n nodewright-system rollout status deployment nodewright
		tar -xzf nodewright-config-$version.tar.gz
		kubectl apply -n nodewright-system -k nodewright-config-$version/samples/kind
		\`\`\`

		In place of the two files: \`helm install nodewright nodewright-$version.tgz --namespace nodewright-system --create-namespace
		--values kind-values.yaml\`.

		\`samples/kind/machine_class.yaml\` has to name the node image of your cluster:
		\`docker inspect --format='{{.Config.Image}}' kind-control-plane\`.

		An upgrade is an apply of the two files of the newer version, or \`helm upgrade\`; the images in a file are those of its version.

		To uninstall, machines first: the manager deletes their VMs.

		\`\`\`console
		kubectl -n nodewright-system delete machinedeployments,machinesets,machines,machineclasses --all
		kubectl get namespaces -l nodewright.dev/in-use           # some seconds later nodewright-system is not listed any more
		kubectl delete -f nodewright-aws.yaml                     # or helm uninstall nodewright --namespace nodewright-system,
		                                                          # and kubectl delete namespace nodewright-system
		tar -xzf nodewright-config-$version.tar.gz                # and after the last installation of a cluster:
		kubectl delete -k nodewright-config-$version/crd
		kubectl patch -k nodewright-config-$version/guard --type=merge -p '{"metadata":{"finalizers":null}}'
		kubectl delete -k nodewright-config-$version/guard
		\`\`\`

		The plugin of kubectl:

		\`\`\`console
		tar -xzf kubectl-nodewright-linux-amd64.tar.gz && sudo install kubectl-nodewright /usr/local/bin
		kubectl apply --server-side -f nodewright-plugin.yaml     # the role of its users
		kubectl nodewright tree
		\`\`\`

		\`images.txt\` has the name of each image, the digest of its index of amd64 and arm64, and its archive here, for registries that
		have no access to $registry: \`skopeo copy --all oci-archive:nodewright.tar docker://registry.example.com/nodewright:$version\`.
		\`*.cdx.json\` list what is in the images, in CycloneDX's JSON. \`nodewright-config-$version.tar.gz\` has kustomize folders for
		overlays.
	EOF
}

if [ -z "$images" ]; then
	images=$target/images
	"$here/images.sh" --into "$images" >&2
fi
epoch=$(source_date_epoch)
kubectl=$("$here/control-plane.sh")/kubectl
mkdir -p "$(dirname "$into")"
work=$(mktemp -d "$into.XXXXXX")
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"

while read -r reference _ archive; do
	program=${archive%.tar}
	[ "$reference" = "$registry/$program:$version" ] || die "$images has $reference, and not $registry/$program:$version"
	cp "$images/$archive" "$images/$program"-{amd64,arm64}.cdx.json "$work"
done <"$images/images.txt"
cp "$images/images.txt" "$repository/LICENSE" "$work"
config=$work/.config
released_config "$config"
make_objects "$config"
# As `helm package` does, which notes the time besides.
pack "$config/chart" "$work/nodewright-$version.tgz" nodewright
rm -r "$config/chart"
pack "$config" "$work/nodewright-config-$version.tar.gz" "nodewright-config-$version"
rm -r "$config"
make_plugin
readme >"$work/README.md"
(cd "$work" && sha256sum -- * >.sums && mv .sums SHA256SUMS && chmod 644 -- *)
rm -rf "$into"
mv "$work" "$into"
trap - EXIT
printf '%s\n' "$into"
