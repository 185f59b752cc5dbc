# Sourced by the other scripts, from the repository root: ensure_venv [EXTRAS] [FOLDER] makes an environment (.venv)
# and installs kvops in it.
# Installs only when pyproject.toml, constraints.txt or the extras asked for differ from what the stamp says.

_say() { printf '%s\n' "$*" >&2; }

_find_python() {
  local name
  for name in python3 python3.14 python3.13 python3.12 python3.11; do
    if command -v "$name" >/dev/null && "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$name"
      return
    fi
  done
  _say "kvops needs Python 3.11 or newer, and none was found."
  _say "  Debian 12 or newer: apt-get install python3 python3-venv"
  return 1
}

_make_venv() {
  local python venv=$1
  python=$(_find_python) || return 1
  if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    _say "Python's venv module is missing for $(command -v "$python")."
    _say "  Debian: apt-get install $("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"
    return 1
  fi
  _say "Making $venv with $("$python" --version)"
  "$python" -m venv --clear "$venv"
}

_wanted_stamp() { cat pyproject.toml constraints.txt | cksum | cut -d' ' -f1,2 | tr ' ' '-'; }

ensure_venv() {
  local extras=${1:-} venv=${2:-.venv} hash installed_hash= installed_extras=
  local stamp=$venv/kvops.stamp
  hash=$(_wanted_stamp)
  if ! "$venv/bin/python" -c 'import pip' 2>/dev/null; then
    _make_venv "$venv"
  elif [[ -f $stamp ]]; then
    read -r installed_hash installed_extras <"$stamp" || true
  fi
  # An environment with the extras also serves a script that asks for none, and keeps them.
  [[ -n $extras ]] || extras=$installed_extras
  if [[ $hash == "$installed_hash" && $extras == "$installed_extras" ]]; then
    return
  fi
  _say "Installing kvops${extras:+ [$extras]} into $venv (takes a few minutes the first time)"
  "$venv/bin/python" -m pip install -qq --disable-pip-version-check --no-input \
    -c constraints.txt -e ".${extras:+[$extras]}"
  printf '%s %s\n' "$hash" "$extras" >"$stamp"
}
