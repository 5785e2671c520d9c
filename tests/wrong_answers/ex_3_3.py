"""Exercise 3.3: answers that its check must refuse, each with words from the reason that it must give."""


def parts(C, S):
    return 3 * S * S * 4, C * S * S * 4, 40, 8  # image, maps, log-probabilities, label


def right_c(C):
    return 8 * C + 4


def counts_numbers(C, S):
    image, maps, logs, label = parts(C, S)
    return (image + 2 * maps + logs + label) // 4, right_c(C)


def counts_relu_twice(C, S):
    image, maps, logs, label = parts(C, S)
    return image + 3 * maps + logs + label, right_c(C)


def forgets_batch_norms_input(C, S):
    image, maps, logs, label = parts(C, S)
    return image + maps + logs + label, right_c(C)


def forgets_the_image(C, S):
    image, maps, logs, label = parts(C, S)
    return 2 * maps + logs + label, right_c(C)


def forgets_the_label(C, S):
    image, maps, logs, label = parts(C, S)
    return image + 2 * maps + logs, right_c(C)


def gives_a_label_four_bytes(C, S):
    image, maps, logs, label = parts(C, S)
    return image + 2 * maps + logs + 4, right_c(C)


def forgets_the_loss(C, S):
    image, maps, logs, label = parts(C, S)
    return image + 2 * maps, right_c(C)


def statistics_per_image(C, S):
    image, maps, logs, label = parts(C, S)
    return image + 2 * maps + logs + label + 8 * C, 4


def forgets_the_statistics(C, S):
    image, maps, logs, label = parts(C, S)
    return image + 2 * maps + logs + label, 4


def keeps_the_mean_only(C, S):
    image, maps, logs, label = parts(C, S)
    return image + 2 * maps + logs + label, 4 * C + 4


def forgets_the_losss_own(C, S):
    image, maps, logs, label = parts(C, S)
    return image + 2 * maps + logs + label, 8 * C


def has_no_constant(C, S):
    return sum(parts(C, S))


WRONG = [
    (counts_numbers, "a number of numbers meant as bytes"),
    (counts_relu_twice, "counts twice"),
    (forgets_batch_norms_input, "are two tensors"),
    (forgets_the_image, "is the image itself in it"),
    (forgets_the_label, "what is kept of the labels"),
    (gives_a_label_four_bytes, "a label has 8 bytes"),
    (forgets_the_loss, "what does the loss keep"),
    (statistics_per_image, "once per batch, not once per image"),
    (forgets_the_statistics, "what does BatchNorm keep for each channel"),
    (keeps_the_mean_only, "two numbers for each channel"),
    (forgets_the_losss_own, "keeps something of its own"),
    (has_no_constant, "not a pair (a, c)"),
]


def in_closed_form(C, S):
    return [12 * S * S + 8 * C * S * S + 48, 4 * (2 * C + 1)]


RIGHT = [in_closed_form]
