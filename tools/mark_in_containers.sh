#!/bin/sh
# Mark each notebook of a folder in a container of its own:
#     sh tools/mark_in_containers.sh inbox [--csv marks.csv] [--feedback feedback]
# The files are those of `python -m course_utils.grade`; names of files are taken from the course's folder on.
# The exit code is 1 if something in the folder was not judged, and the last line names it; 2 if nothing was marked.
# podman is taken, else docker, else apptainer (untried); ENGINE="podman --runtime=runc" names another, and
# OPTIONS="--memory=8g" adds options of its `run`, or of apptainer's `exec`. Python and its libraries are this machine's,
# read only, so any image of a system with glibc will do: IMAGE=debian:stable; for apptainer docker://debian:stable or a file.
inbox=$([ -d "$1" ] && cd "$1" && pwd) || {
    echo "mark_in_containers: there is no folder '$1': name the one that holds what was handed in." >&2
    exit 2
}
shift
cd "$(dirname "$0")/.." || exit 2
if ! [ -x .venv/bin/python ]; then
    echo "mark_in_containers: the course is not installed here: run \`make install\` first." >&2
    exit 2
fi
: "${ENGINE:=$(command -v podman || command -v docker || command -v apptainer)}"
if ! [ "$ENGINE" ]; then
    echo "mark_in_containers: neither podman, docker nor apptainer is here: install one, or name another with ENGINE=." >&2
    exit 2
fi
program=${ENGINE%% *}
case "${program##*/}" in
    apptainer | singularity) volume=--bind ;;
    *) volume=--volume ;;
esac

here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
trap 'exit 130' INT TERM
mkdir "$here/empty" "$here/handed_in" "$here/tmp" "$here/said"
python=$(.venv/bin/python -c 'import sys; print(sys.base_prefix)')
[ "$python" = /usr ] && python=
answers="from course_utils.grade.marking import PACKAGE, answers; print(*answers(PACKAGE))"
hidden=
for folder in $(.venv/bin/python -c "$answers"); do
    [ -d "$folder" ] && hidden="$hidden $volume $here/empty:$folder:ro"
done

# Run the command after the options of volumes in a new container, without a network.
# shellcheck disable=SC2086  # ENGINE and OPTIONS are words
contained() {
    if [ $volume = --bind ]; then  # its own /tmp would be of 64 MiB
        rm -rf "$here/tmp/"*
        $ENGINE exec --containall --net --network none --env COURSE_CONTAINED=1 $OPTIONS --bind "$here/tmp:/tmp" --pwd "$PWD" "$@"
    else
        $ENGINE run --rm --network=none --shm-size=2g --read-only --tmpfs /tmp --env HOME=/tmp --env COURSE_CONTAINED=1 \
            $OPTIONS --workdir "$PWD" "$@"
    fi
}

[ $volume = --bind ] && : "${IMAGE:=docker://debian:stable}"

# Run Python on the course in a new container. An empty folder hides what holds answers. A --tmpfs would not: podman
# copies into it what it should hide.
# shellcheck disable=SC2086  # hidden is words
python_contained() {
    contained $volume /usr:/usr:ro ${python:+$volume "$python:$python:ro"} $volume "$PWD:$PWD:ro" \
        $hidden $volume "$here/empty:$inbox:ro" $volume "$here/handed_in:/handed_in:ro" \
        "${IMAGE:-debian:stable}" .venv/bin/python "$@"
}

is_any=
for file in "$inbox"/*.ipynb; do
    if ! [ -e "$file" ] && ! [ -L "$file" ]; then
        echo "mark_in_containers: there is no notebook in $inbox." >&2
        exit 2
    fi
    # Before the first, one without a submission: where none starts, that is said once, and nothing is written.
    if ! [ $is_any ] && ! python_contained -c pass >&2; then
        echo "mark_in_containers: $ENGINE could not start Python in a container, its own line says why, and nothing was" \
            "marked. OPTIONS adds what it asks for, as in OPTIONS=\"--ulimit=nofile=1024\"; ENGINE= names another." >&2
        exit 2
    fi
    # What would be refused at the end, as a file that is there, is refused before hours have passed.
    [ $is_any ] || .venv/bin/python -m course_utils.grade.collected "$inbox" "$here/said" "$@" --try || exit
    is_any=1
    echo "${file##*/}" >&2
    rm -rf "$here/handed_in/"*
    cp -P "$file" "$here/handed_in/"  # a link stays one, and leads nowhere in the container
    python_contained -m course_utils.grade /handed_in --json - >"$here/said/${file##*/}.json"
    [ -s "$here/said/${file##*/}.json" ] ||
        echo "mark_in_containers: nothing came out of this container; if it said why, its own lines are above." >&2
done
.venv/bin/python -m course_utils.grade.collected "$inbox" "$here/said" "$@"
