#!/bin/sh
# Print the Python to install with: the first of the arguments that is 3.11 or newer. `.venv` means the Python that .venv was
# made with. With `auto`, if none is new enough, uv installs one into build/, without root. All messages go to standard error.
cd "$(dirname "$0")/../.." || exit 1

version() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }

is_auto=
found=
for name; do
    if [ "$name" = auto ]; then is_auto=1; continue; fi
    if [ "$name" = .venv ]; then
        name=$(.venv/bin/python -c 'import sys; print(sys._base_executable)' 2>/dev/null) || continue
    fi
    case "$(version "$name")" in
        "") ;;
        2.*|3.[0-9]|3.10) found="${found:+$found, }$name is $(version "$name")" ;;
        *) echo "$name"; exit 0 ;;
    esac
done

if [ -z "$is_auto" ]; then
    echo "The course needs Python 3.11 or newer, and here ${found:-there is none}: add PYTHON=auto, and one is brought into" \
        "build/, without root; or install one, or name one with PYTHON=/path/to/python." >&2
    exit 1
fi

# Get uv from any Python's pip, unless it is here already.
uv=build/uv/bin/uv
if ! [ -x "$uv" ]; then
    pin=$(sed -n 's/^UV_PIN = "\(.*\)"/\1/p' tools/install/bootstrap.py)
    for name in "$@" python3 python; do
        [ "${name#.}" != venv ] && [ "$name" != auto ] && "$name" -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: \
            --target build/uv "$pin" >&2 && break
    done
fi
[ -x "$uv" ] || uv=$(command -v uv) || {
    echo "PYTHON=auto needs uv, which no Python with pip is here to fetch: install uv or a newer Python, then run the same" \
        "command again." >&2
    exit 1
}
export UV_PYTHON_INSTALL_DIR="$PWD/build/python"
wanted='>=3.11,<3.13'  # 3.12 is the newest for which all wheels surely exist
"$uv" python install --quiet --no-bin "$wanted" >&2 && "$uv" python find --managed-python "$wanted" || {
    echo "uv could not bring a Python: its lines above say why; mend that, then run the same command again." >&2
    exit 1
}
