"""Register the course's Python as a kernel of this user, where Jupyter already runs: `make kernel`."""

import sys

from ipykernel.kernelspec import install

from tools.lab import start, working_copy

NAME, TITLE = "from-one-gpu-to-many", "From One GPU to Many"


def main():
    folder = working_copy.place()
    start.make_copy(folder)
    try:
        where = install(user=True, kernel_name=NAME, display_name=TITLE)
    except OSError as error:
        sys.exit(
            f"\nThe kernel could not be written to {error.filename} ({error.strerror}): mend that, then run the "
            "same command again."
        )
    print(
        f'The kernel "{TITLE}" is registered in {where}.\n'
        f"In JupyterHub, Open OnDemand or VS Code open {folder / start.FIRST}, and choose that kernel at the top "
        "right; reload the page if it is not listed yet."
    )


if __name__ == "__main__":
    main()
