# %% right (from the exponent)
def largest_scale(gradients):
    worst = torch.stack([g.abs().amax() for g in gradients]).amax().item()
    if not math.isfinite(worst):
        return None
    mantissa, exponent = math.frexp(worst)  # worst = mantissa · 2^exponent, the mantissa from 0.5 to 1
    return 2.0 ** (16 - exponent if mantissa * 65536 <= 65504 else 15 - exponent)

# %% wrong (takes 65536 for the largest number): times that overflows in float16
# <= 65504 → <= 65536
# %% wrong (stays below the largest number): where the largest is float16's largest number: the scale was 2^-1
# <= 65504 → < 65504
# %% wrong (forgets the sign): where the largest in absolute value is negative
# g.abs().amax() → g.amax()
# %% wrong (is no power of two): no power of two
# return 2.0 ** ( → return 1.5 * 2.0 ** (
# %% wrong (returns nothing): a float is wanted
# return 2.0 ** → 2.0 **
# %% wrong (lets inf pass): no scale makes that finite
# return None → return 1.0
