# shellcheck shell=bash
# Sourced by scripts that change the product in a copy of HEAD, and leave the checkout as it is.

# copy_of_head DIRECTORY: makes it, in place of the one that an interrupted run left. It goes when the script ends.
copy_of_head() {
	copied=$1
	git worktree remove --force "$copied" 2>/dev/null || true
	git worktree prune
	git worktree add --quiet --detach "$copied" HEAD
	trap 'git worktree remove --force "$copied"' EXIT
}
