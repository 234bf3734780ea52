# To be sourced: a copy of HEAD in which the product is changed, without a change of the checkout.

# copy_of_head DIRECTORY: makes it, in place of the one that an interrupted run left. It goes when the script ends.
copy_of_head() {
	copied=$1
	git worktree remove --force "$copied" 2>/dev/null || true
	git worktree prune
	git worktree add --quiet --detach "$copied" HEAD
	trap 'git worktree remove --force "$copied"' EXIT
}
