#!/usr/bin/env bash
# Reviews what a change does to the policies of a folder, for CI: review_policies.sh BASE [FOLDER]
#
#   BASE    the git revision to compare with, such as HEAD^1 of a merge
#   FOLDER  where the policies lie, from the top of the repository; default: policies
#
# Every .toml file of FOLDER but invariants.toml is taken for a policy. Exit 1 if one of them does not lint or test,
# if policy.lock is stale or gone, if an invariant does not hold, or if a policy is wider than at BASE without an
# entry in FOLDER/WIDENINGS.md; 2 for a command line that cannot be understood. What is new is compared with the
# shipped `ceiling`. A change through a parent counts, wherever the parent lies; folders below FOLDER are not reviewed
# for themselves.
#
# The report is markdown, on standard output, and appended to $GITHUB_STEP_SUMMARY and $POLICY_REPORT where they are
# set. What policies say stands in it as indented text only, so that no policy writes a report of its own.
#
# Needs bash, git and muniment (or $MUNIMENT). Nothing of the repository is run. Run a copy of this script, and a
# muniment, that the change under review cannot have touched: see policy-review.yml.
set -euo pipefail
shopt -s nullglob dotglob

die() { printf 'review_policies: %s\n' "$1" >&2; exit 2; }

[ "$#" -ge 1 ] && [ "$#" -le 2 ] || die "usage: review_policies.sh BASE [FOLDER]"
top=$(git rev-parse --show-toplevel 2>/dev/null) || die "this is no git repository"
cd "$top"
base=$(git rev-parse --verify --quiet --end-of-options "$1^{commit}") || die "$1 is no revision here"
folder=${2:-policies}
folder=${folder%/}
case /$folder/ in //* | /-* | */../* | */./*) die "FOLDER is a path from the top of the repository" ;; esac

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
ln -s "$PWD" "$work/now"
mkdir "$work/base" "$work/home"
export MUNIMENT_HOME="$work/home" NO_COLOR=1 # neither the settings nor the policies of whoever runs this
muniment=${MUNIMENT:-muniment}
command -v "$muniment" >/dev/null || die "there is no $muniment to run"
body=$work/folder.md # or policies.md; both stand in the report
fit=yes

line() { printf '%s\n' "$1" >>"$body"; }
heading() { printf '\n### %s\n\n' "$1" >>"$body"; }
unfit() { line "$1"; fit=no; }

# Text that others wrote: each line of it indented, and no control character.
quoted() {
    line ""
    LC_ALL=C tr -d '\000-\010\013-\037\177' |
        sed -e "s|$work/now/||g" -e "s|$work/||g" -e 's/^/    /' >>"$body"
    line ""
}

# Runs a command of muniment policy and quotes what it says; its exit code is that of the command.
policy() {
    local code=0
    "$muniment" policy "$@" >"$work/said" 2>&1 || code=$?
    quoted <"$work/said"
    return "$code"
}

# Every TOML file and lock of BASE, since a parent may lie in any folder. Blobs, byte for byte: git-archive would
# heed export-ignore of a .gitattributes, and a policy that is hidden there would look new.
extract_base() {
    local entry path kind id
    git ls-tree -r -z --full-tree "$base" >"$work/tree" # Not in a pipe: without a tree everything would look new.
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

# The policies of a folder that can be understood, a line each: name, digest, file.
table_of() {
    local file
    for file in "$1"/*.toml; do
        [ "${file##*/}" != invariants.toml ] || continue
        # `explain` names both, and does not mind a lock that is stale. Quotes inside its strings are escaped.
        "$muniment" policy explain "$file" read x --json 2>/dev/null | sed -n '
            s/^  "policy": "\([a-z0-9_-]*\)",$/\1/p
            s/^  "digest": "\([0-9a-f]*\)",$/\1/p' | {
            if read -r name && read -r digest; then printf '%s\t%s\t%s\n' "$name" "$digest" "$file"; fi
        } || true # One that does not load is unfit, and lint has said why.
    done
}

# The line of a table, by name or by file.
by_name() { awk -F '\t' -v name="$1" '$1 == name' "$2"; }
by_file() { awk -F '\t' -v file="$1" '{ n = split($3, part, "/") } part[n] == file' "$2"; }

check_folder() {
    local file links odd below
    heading "The folder"
    links=$(find "$folder" -type l)
    if [ -n "$links" ]; then
        unfit "**Unfit:** links, which may lead out of the repository."
        quoted <<<"$links"
        return 1
    fi
    odd=$(LC_ALL=C find "$folder" -name '*.toml' -name '*[!A-Za-z0-9._-]*')
    if [ -n "$odd" ]; then
        unfit "**Unfit:** names of other characters than letters, digits, dots, - and _."
        quoted <<<"$odd"
        return 1
    fi
    below=$(find "$folder" -mindepth 2 -name '*.toml')
    if [ -n "$below" ]; then
        line "Not reviewed for themselves, being further down:"
        quoted <<<"$below"
    fi
    for file in "$work/now/$folder"/*.toml; do
        [ "${file##*/}" = invariants.toml ] || files+=("$file")
    done
    if [ "${#files[@]}" -eq 0 ]; then
        line "It holds no policy."
    else
        policy lint "${files[@]}" || unfit "**Unfit:** see the lines with E."
        for file in "${files[@]}"; do
            policy test "$file" || unfit "**Unfit:** the inline tests of that file fail, or let something pass."
        done
    fi
    check_lock
    check_invariants
}

check_lock() {
    if [ -e "$folder/policy.lock" ]; then
        policy lock "$work/now/$folder" --check || unfit "**Unfit:** the lock does not say what the files say."
    elif [ -e "$work/base/$folder/policy.lock" ]; then
        unfit "**Unfit:** policy.lock is gone."
    else
        line "There is no policy.lock."
    fi
}

check_invariants() {
    local invariants=$work/now/$folder/invariants.toml before=$work/base/$folder/invariants.toml
    if [ -e "$invariants" ]; then # Without a policy it is still read, so that it hides none.
        policy prove "$invariants" "${files[@]:-strict}" || unfit "**Unfit:** an invariant is not proved."
    fi
    if [ -e "$before" ] && ! cmp -s "$before" "$invariants"; then
        line "**Read this:** invariants.toml is not what it was."
        { diff -u "$before" "$invariants" 2>&1 || true; } | cat -v | quoted # -v: nothing in it is invisible
    fi
}

# Compares two files, or a name and a file; a widening without an entry is unfit.
compare() {
    local old=$1 new=$2 accepted=()
    [ ! -e "$folder/WIDENINGS.md" ] || accepted=(--accepted "$work/now/$folder/WIDENINGS.md")
    if ! policy diff "$old" "$new" "${accepted[@]}"; then
        unfit "**Wider, or not to be decided, and nobody has accepted it.**"
    fi
}

# shellcheck disable=SC2094  # the tables are only read here
compare_all() {
    local name digest file old_name old_digest old_file same
    while IFS=$'\t' read -r name digest file; do
        heading "$name"
        [ "$(by_name "$name" "$work/new" | wc -l)" -eq 1 ] || unfit "**Unfit:** two files call themselves so."
        { by_name "$name" "$work/old"; by_file "${file##*/}" "$work/old"; } | sort -u >"$work/matches"
        same=yes
        while IFS=$'\t' read -r old_name old_digest old_file; do
            if [ "$old_digest" != "$digest" ] || [ "$old_name" != "$name" ]; then
                same=no
                cmp -s "$old_file" "$file" && line "Its file is as it was; a parent of it has changed."
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
        [ -z "$(by_name "$name" "$work/new")" ] || continue
        heading "$name"
        if [ -e "$folder/${file##*/}" ]; then
            line "Its file does not load, or calls itself something else."
        else
            line "Removed. A run that asks for it is refused."
        fi
    done <"$work/old"
}

files=()
touch "$work/folder.md" "$work/policies.md"
extract_base
if [ ! -d "$folder" ]; then
    unfit "There is no folder of that name."
elif check_folder; then
    body=$work/policies.md
    table_of "$work/base/$folder" >"$work/old"
    table_of "$work/now/$folder" >"$work/new"
    compare_all
fi

verdict="nothing is wider than at ${base:0:12}, or its widening is accepted"
[ "$fit" = yes ] || verdict="**not to be merged as it is**"
{ printf '## Policies: %s\n' "$verdict"; cat "$work/policies.md" "$work/folder.md"; } >"$work/report.md"
cat "$work/report.md"
for place in "${GITHUB_STEP_SUMMARY:-}" "${POLICY_REPORT:-}"; do
    [ -z "$place" ] || cat "$work/report.md" >>"$place"
done
[ "$fit" = yes ]
