#!/usr/bin/env bash
# Review the effect of a change on the policies of a folder, for CI: review_policies.sh BASE [FOLDER]
#
#   BASE    the git revision to compare with, such as HEAD^1 of a merge
#   FOLDER  the folder of the policies, relative to the top of the repository; default: policies
#
# Every .toml file of FOLDER except invariants.toml is a policy. Exit 1 if one of them fails lint or test, if
# policy.lock is stale or deleted, if an invariant is not proved, or if a policy is wider than at BASE without an
# entry in FOLDER/WIDENINGS.md; exit 2 for an invalid command line. A new policy is compared with the shipped
# `ceiling`. A change in a parent counts, in any folder; subfolders of FOLDER are not reviewed separately.
#
# The report is markdown, on standard output, and appended to $GITHUB_STEP_SUMMARY and $POLICY_REPORT if they are
# set. Text of policies is always indented, so that a policy cannot forge a report.
#
# Requires bash, git and muniment (or $MUNIMENT). No code of the repository is run. Use a copy of this script, and a
# muniment, that the change under review cannot modify: see policy-review.yml.
set -euo pipefail
shopt -s nullglob dotglob

die() { printf 'review_policies: %s\n' "$1" >&2; exit 2; }

[ "$#" -ge 1 ] && [ "$#" -le 2 ] || die "usage: review_policies.sh BASE [FOLDER]"
top=$(git rev-parse --show-toplevel 2>/dev/null) || die "not a git repository"
cd "$top"
base=$(git rev-parse --verify --quiet --end-of-options "$1^{commit}") || die "unknown revision $1"
folder=${2:-policies}
folder=${folder%/}
case /$folder/ in //* | /-* | */../* | */./*) die "invalid FOLDER: use a path relative to the top of the repository" ;; esac

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
ln -s "$PWD" "$work/now"
mkdir "$work/base" "$work/home"
export MUNIMENT_HOME="$work/home" NO_COLOR=1 # without the settings and policies of the user
muniment=${MUNIMENT:-muniment}
command -v "$muniment" >/dev/null || die "command $muniment not found; install it, or set MUNIMENT"
body=$work/folder.md # or policies.md; both are part of the report
fit=yes

line() { printf '%s\n' "$1" >>"$body"; }
heading() { printf '\n### %s\n\n' "$1" >>"$body"; }
mark_unfit() { line "$1"; fit=no; }

# Quote untrusted text: indent each line and remove control characters.
quote() {
    line ""
    LC_ALL=C tr -d '\000-\010\013-\037\177' |
        sed -e "s|$work/now/||g" -e "s|$work/||g" -e 's/^/    /' >>"$body"
    line ""
}

# Run a command of muniment policy, quote its output, and return its exit code.
policy() {
    local code=0
    "$muniment" policy "$@" >"$work/output" 2>&1 || code=$?
    quote <"$work/output"
    return "$code"
}

# Extract every TOML file and lock of BASE, since a parent may be in any folder. Copy blobs byte for byte: git-archive
# would apply export-ignore of a .gitattributes, and a policy hidden there would look new.
extract_base() {
    local entry path kind id
    git ls-tree -r -z --full-tree "$base" >"$work/tree" # Not in a pipe: if this fails, every policy would look new.
    while IFS= read -r -d '' entry; do
        path=${entry#*$'\t'}
        read -r kind _ id <<<"${entry%%$'\t'*}"
        case $path in *.toml | policy.lock | */policy.lock) ;; *) continue ;; esac
        mkdir -p "$work/base/$(dirname "$path")"
        case $kind in
        100*) git cat-file blob "$id" >"$work/base/$path" ;;
        120000) ln -s -- "$(git cat-file blob "$id")" "$work/base/$path" ;;
        esac
    done <"$work/tree"
}

# List the valid policies of a folder, one per line: name, digest, file.
list_policies() {
    local file
    for file in "$1"/*.toml; do
        [ "${file##*/}" != invariants.toml ] || continue
        # `explain` prints both and accepts a stale lock. Quotes inside its strings are escaped.
        "$muniment" policy explain "$file" read x --json 2>/dev/null | sed -n '
            s/^  "policy": "\([a-z0-9_-]*\)",$/\1/p
            s/^  "digest": "\([0-9a-f]*\)",$/\1/p' | {
            if read -r name && read -r digest; then printf '%s\t%s\t%s\n' "$name" "$digest" "$file"; fi
        } || true # A policy that does not load is already reported by lint.
    done
}

# Find lines of a table, by name or by file.
find_by_name() { awk -F '\t' -v name="$1" '$1 == name' "$2"; }
find_by_file() { awk -F '\t' -v file="$1" '{ n = split($3, part, "/") } part[n] == file' "$2"; }

check_folder() {
    local file links invalid_names subfolders
    heading "The folder"
    links=$(find "$folder" -type l)
    if [ -n "$links" ]; then
        mark_unfit "**Unfit:** links, which may point outside the repository."
        quote <<<"$links"
        return 1
    fi
    invalid_names=$(LC_ALL=C find "$folder" -name '*.toml' -name '*[!A-Za-z0-9._-]*')
    if [ -n "$invalid_names" ]; then
        mark_unfit "**Unfit:** names with characters other than letters, digits, dots, - and _."
        quote <<<"$invalid_names"
        return 1
    fi
    subfolders=$(find "$folder" -mindepth 2 -name '*.toml')
    if [ -n "$subfolders" ]; then
        line "In subfolders, not reviewed separately:"
        quote <<<"$subfolders"
    fi
    for file in "$work/now/$folder"/*.toml; do
        [ "${file##*/}" = invariants.toml ] || files+=("$file")
    done
    if [ "${#files[@]}" -eq 0 ]; then
        line "The folder contains no policy."
    else
        policy lint "${files[@]}" || mark_unfit "**Unfit:** see the E findings."
        for file in "${files[@]}"; do
            policy test "$file" || mark_unfit "**Unfit:** the inline tests of that file fail, or do not detect a weaker rule."
        done
    fi
    check_lock
    check_invariants
}

check_lock() {
    if [ -e "$folder/policy.lock" ]; then
        policy lock "$work/now/$folder" --check || mark_unfit "**Unfit:** policy.lock does not match the files."
    elif [ -e "$work/base/$folder/policy.lock" ]; then
        mark_unfit "**Unfit:** policy.lock was deleted."
    else
        line "No policy.lock."
    fi
}

check_invariants() {
    local invariants=$work/now/$folder/invariants.toml before=$work/base/$folder/invariants.toml
    if [ -e "$invariants" ]; then # Also checked without policies, so that it cannot hide a policy.
        policy prove "$invariants" "${files[@]:-strict}" || mark_unfit "**Unfit:** an invariant is not proved."
    fi
    if [ -e "$before" ] && ! cmp -s "$before" "$invariants"; then
        line "**Read this:** invariants.toml changed."
        { diff -u "$before" "$invariants" 2>&1 || true; } | cat -v | quote # -v: show invisible characters
    fi
}

# Compare two files, or a name and a file; a widening without an entry is unfit.
compare() {
    local old=$1 new=$2 accepted=()
    [ ! -e "$folder/WIDENINGS.md" ] || accepted=(--accepted "$work/now/$folder/WIDENINGS.md")
    if ! policy diff "$old" "$new" "${accepted[@]}"; then
        mark_unfit "**Wider or undecided, and not accepted.**"
    fi
}

# shellcheck disable=SC2094  # the tables are only read here
compare_all() {
    local name digest file old_name old_digest old_file same
    while IFS=$'\t' read -r name digest file; do
        heading "$name"
        [ "$(find_by_name "$name" "$work/new" | wc -l)" -eq 1 ] || mark_unfit "**Unfit:** two files have this name."
        { find_by_name "$name" "$work/old"; find_by_file "${file##*/}" "$work/old"; } | sort -u >"$work/matches"
        same=yes
        while IFS=$'\t' read -r old_name old_digest old_file; do
            if [ "$old_digest" != "$digest" ] || [ "$old_name" != "$name" ]; then
                same=no
                cmp -s "$old_file" "$file" && line "Its file is unchanged; a parent changed."
                compare "$old_file" "$file"
            fi
        done <"$work/matches"
        if [ ! -s "$work/matches" ]; then
            [ ! -e "$work/base/$folder/${file##*/}" ] || line "Its file did not load at the base."
            line "New; compared with the shipped \`ceiling\`."
            compare ceiling "$file"
        elif [ "$same" = yes ]; then
            line "Unchanged."
        fi
    done <"$work/new"
    while IFS=$'\t' read -r name digest file; do
        [ -z "$(find_by_name "$name" "$work/new")" ] || continue
        heading "$name"
        if [ -e "$folder/${file##*/}" ]; then
            line "Its file does not load, or has another name now."
        else
            line "Removed. A run that requests it is rejected."
        fi
    done <"$work/old"
}

files=()
touch "$work/folder.md" "$work/policies.md"
extract_base
if [ ! -d "$folder" ]; then
    mark_unfit "Folder not found."
elif check_folder; then
    body=$work/policies.md
    list_policies "$work/base/$folder" >"$work/old"
    list_policies "$work/now/$folder" >"$work/new"
    compare_all
fi

verdict="no policy is wider than at ${base:0:12}, or its widening is accepted"
[ "$fit" = yes ] || verdict="**do not merge as is**"
{ printf '## Policies: %s\n' "$verdict"; cat "$work/policies.md" "$work/folder.md"; } >"$work/report.md"
cat "$work/report.md"
for target in "${GITHUB_STEP_SUMMARY:-}" "${POLICY_REPORT:-}"; do
    [ -z "$target" ] || cat "$work/report.md" >>"$target"
done
[ "$fit" = yes ]
