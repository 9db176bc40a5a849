"""Time the gradient step of the augmented-Omniglot network on a GPU, piece by piece and as a whole.

    python benchmarks/conv_gpu.py [--seconds 225] [--smoke]

Phases, each in a process of its own, so that a kernel that fails takes nothing else with it:

- `pieces`: convolutions, their two gradients, what follows them and the first block, in all variants and tilings;
- `steps`: twenty gradient steps in one scan, for all variants, the kernels with the fastest tilings of `pieces`;
- `profile`: which kernels a step of the best variant and of the library's spends its time in;
- `adapt`: the same two in `shrinx.adapt` with augmentation and proximal update;
- `flags`: the same two with flags of the compiler.

Every row has a time and an error, the distance to the result in float32 relative to its length; of a step, it is that
of the summed gradients. A variant in bfloat16 should be no further from it than the library's (`patches`).
Everything goes to $OUT/conv_gpu.json. Tilings are written 128r4w3s: rows a tile, warps, stages of the pipeline, (t)aps
a program, (k) splits of the sum, u if the taps are unrolled.
"""

import argparse
import collections
import concurrent.futures
import functools
import glob
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import asdict, replace
from pathlib import Path

import conv_kernels as kernels
import conv_variants as variants
import jax
import jax.numpy as jnp
from conv_kernels import Grid, Tiling
from conv_variants import Tilings, Variant

TASKS, IMAGES, STEPS = 20, 20, 20
SIDES = (28, 14, 7, 3)
OUT = Path(os.environ.get("OUT", "."))
SMOKE = "--smoke" in sys.argv
WORKERS = int(os.environ.get("CONV_GPU_WORKERS", "8"))
"""Programs compiled at a time; 1 if a compiler should turn out not to like company."""

FLAGS = {
    "default": "",
    "no triton gemm": "--xla_gpu_enable_triton_gemm=false",
    "graphs": "--xla_gpu_enable_command_buffer=FUSION,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL,CONDITIONAL,WHILE,"
    "DYNAMIC_SLICE_FUSION --xla_gpu_graph_min_graph_size=1",
    "no graphs": "--xla_gpu_enable_command_buffer=",
    "autotune 0": "--xla_gpu_autotune_level=0",
}

CONVOLVE = [
    Tiling(tile, warps=warps, stages=stages, unroll=unroll)
    for tile, warps, stages, unroll in [
        (128, 4, 3, False),
        (128, 4, 4, False),
        (128, 8, 3, False),
        (64, 4, 3, False),
        (64, 4, 4, False),
        (256, 8, 3, False),
        (128, 4, 1, True),
        (128, 8, 1, True),
        (64, 4, 1, True),
        (32, 4, 3, False),
    ]
]
KERNEL_GRADIENT = [
    Tiling(tile, warps=warps, stages=stages, taps=taps, splits=splits)
    for tile, warps, stages, taps, splits in [
        (64, 4, 3, 3, 4),
        (64, 4, 3, 3, 8),
        (128, 4, 2, 3, 4),
        (64, 4, 2, 3, 4),
        (64, 8, 2, 9, 8),
        (64, 8, 2, 9, 4),
        (64, 4, 4, 1, 2),
        (128, 4, 3, 1, 2),
        (32, 4, 3, 3, 2),
        (32, 4, 3, 1, 1),
    ]
]
POOL = [Tiling(tile, warps=warps) for tile, warps in [(16, 4), (32, 4), (64, 4), (64, 8), (16, 2)]]
FIRST = [Tiling(tile, warps=warps) for tile, warps in [(32, 4), (64, 4), (128, 4), (128, 8)]]
FIRST_GRADIENT = [
    Tiling(tile, warps=warps, splits=splits)
    for tile, warps, splits in [(32, 4, 16), (64, 4, 16), (64, 4, 8), (64, 4, 32), (128, 8, 8)]
]
GRAM = [Tiling(tile, warps=4, splits=splits) for tile, splits in [(64, 16), (128, 16), (128, 8), (128, 32)]]

VARIANTS = {
    "patches (library)": Variant(),
    "all kernels": Variant("kernel", "kernel", "kernel"),
    "kernels, first hand": Variant("kernel", "hand"),
    "kernels, hand norm": Variant("kernel", "hand", "kernel"),
    "patches, first kernel": Variant("patches", "hand", "kernel"),
    "patches, hand norm": Variant("patches", "hand"),
    "patches, bits norm": Variant("patches", "bits"),
    "patches, kernel norm": Variant("patches", "kernel", "kernel"),
    "flip, hand norm": Variant("flip", "hand"),
    "rows, hand norm": Variant("rows", "hand"),
    "grouped convolution": Variant("library", "hand"),
}
MEASURED_BLOCKS = (1, 0, 2, 3)

if SMOKE:
    TASKS, IMAGES, STEPS, kernels.INTERPRET, variants.FILTERS = 2, 2, 2, True, 16
    MEASURED_BLOCKS = (3, 0)
    for many in (CONVOLVE, KERNEL_GRADIENT, POOL, FIRST, FIRST_GRADIENT, GRAM):
        del many[1:]
    for slow in list(VARIANTS)[2:]:
        del VARIANTS[slow]


# Measuring.


def compile_all(cases: dict, workers: int) -> dict:
    """Compiled programs, or the sentence that says why there is none."""

    def attempt(case):
        function, arguments = case
        try:
            return jax.jit(function).lower(*arguments).compile()
        except Exception as error:
            return last_words(error)

    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        return dict(zip(cases, pool.map(attempt, cases.values()), strict=True))


def repeated(function, times: int):
    """`function` again and again on the same arguments, in a loop that the compiler cannot shorten."""

    def looped(*arguments):
        def body(_, carry):
            arguments, _ = jax.lax.optimization_barrier(carry)
            return arguments, function(*arguments)

        shapes = jax.eval_shape(function, *arguments)
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        return jax.lax.fori_loop(0, times, body, (arguments, zeros))[1]

    return looped


def measure(program, arguments, repeats=5):
    """Best time of a call in microseconds, and its result."""
    result = jax.block_until_ready(program(*arguments))
    times = []
    for _ in range(1 if SMOKE else repeats):
        start = time.perf_counter()
        result = jax.block_until_ready(program(*arguments))
        times.append(time.perf_counter() - start)
    return 1e6 * min(times), result


def piece_table(cases: dict, arguments, reference, times=2 if SMOKE else 50) -> dict:
    """Rows of microseconds and error for functions of the same arguments; kernels are compiled side by side."""
    compiled = compile_all({name: (repeated(f, times), arguments) for name, f in cases.items()}, workers=WORKERS)
    rows = {}
    for name, program in compiled.items():
        if isinstance(program, str):
            rows[name] = {"failed": program}
            continue
        try:
            elapsed, result = measure(program, arguments)
            rows[name] = {"us": round(elapsed / times, 2), "error": distance(result, reference)}
        except Exception as error:
            rows[name] = {"failed": last_words(error)}
    return rows


def distance(actual, expected) -> float:
    """The largest over the arrays of a result: length of the difference by length of what is expected."""

    def relative(a, b):
        a, b = a.astype(jnp.float32), b.astype(jnp.float32).reshape(a.shape)
        return float(jnp.linalg.norm((a - b).ravel()) / jnp.linalg.norm(b.ravel()))

    return round(max(jax.tree.leaves(jax.tree.map(relative, actual, expected))), 5)


def last_words(error: Exception) -> str:
    lines = [line for line in "".join(traceback.format_exception(error)).strip().splitlines() if line.strip()]
    return " | ".join(line.strip() for line in lines[-3:])[-300:]


def describe(tiling: Tiling, *names: str) -> str:
    """Rows a tile, warps, then the named settings by their first letters: 128r4w3s."""
    settings = "".join(f"{getattr(tiling, name)}{letter}" for name, letter in LETTERS.items() if name in names)
    return f"{tiling.tile}r{tiling.warps}w{settings}" + ("u" if tiling.unroll else "")


LETTERS = {"stages": "s", "taps": "t", "splits": "k"}


# Phases.


def pieces() -> dict:
    tables: dict = {}
    best: list[Tilings] = [Tilings()] * variants.BLOCKS
    for block in MEASURED_BLOCKS:
        best[block] = block_tilings(block, tables) if block else first_tilings(tables)
        save("pieces", tables | {"tilings": [as_json(tilings) for tilings in best]})
    return load()["pieces"]


def as_json(tilings: Tilings) -> dict:
    return {kernel: asdict(tiling) for kernel, tiling in tilings._asdict().items()}


def block_tilings(block: int, tables: dict) -> Tilings:
    side, filters = SIDES[block], variants.FILTERS
    grid = Grid(IMAGES, side, side)
    images = normal(0, TASKS, IMAGES, side, side, filters)
    kernel = normal(1, TASKS, 3, 3, filters, filters, scale=1 / 24)
    cotangent = normal(2, *images.shape)
    half = tuple(array.astype(jnp.bfloat16) for array in (images, kernel, cotangent))
    flat = jax.vmap(variants.flat)
    wide_convolve = jax.vmap(functools.partial(variants.convolve, "patches", None))
    with jax.default_matmul_precision("highest"):
        forward, transpose = jax.vjp(wide_convolve, *(array.astype(jnp.float32) for array in half[:2]))
        input_gradient, gradient = transpose(half[2].astype(jnp.float32))

    def keep(name, rows, tilings):
        tables[f"block {block}: {name}"] = rows
        good = {key: row for key, row in rows.items() if key in tilings and row.get("error", 1) < 0.03}
        return tilings[min(good, key=lambda key: good[key]["us"])] if good else None

    def kernel_convolve(tiling, transposed):
        one = functools.partial(kernels.convolve, grid=grid, tiling=tiling, transposed=transposed)
        return lambda inputs, kernel: jax.vmap(one)(flat(inputs), kernel)[0]

    tilings = {describe(tiling, "stages"): tiling for tiling in CONVOLVE if tiling.tile <= 2 * grid.pixels}
    names = ("patches", "rows", "library")
    cases = {name: jax.vmap(functools.partial(variants.convolve, name, None)) for name in names}
    cases |= {name: kernel_convolve(tiling, False) for name, tiling in tilings.items()}
    convolve = keep("forward", piece_table(cases, half[:2], forward), tilings)

    def xla_transpose(name, position):
        def gradient(inputs, kernel, cotangent):
            convolution = jax.vmap(functools.partial(variants.convolve, name, None))
            return jax.vjp(convolution, inputs, kernel)[1](cotangent)[position]

        return gradient

    def kernel_transpose(tiling):
        return lambda inputs, kernel, cotangent: kernel_convolve(tiling, True)(cotangent, kernel)

    cases = {name: xla_transpose(name, 0) for name in ("patches", "flip", "rows")}
    cases |= {name: kernel_transpose(tiling) for name, tiling in tilings.items()}
    transposed = keep("gradient of inputs", piece_table(cases, half, input_gradient), tilings)

    def kernel_gradient(tiling):
        one = functools.partial(kernels.kernel_gradient, grid=grid, tiling=tiling)
        return lambda inputs, kernel, cotangent: jax.vmap(one)(flat(inputs), flat(cotangent))

    tilings = {describe(tiling, "stages", "taps", "splits"): tiling for tiling in KERNEL_GRADIENT}
    cases = {name: xla_transpose(name, 1) for name in ("patches", "rows")}
    cases |= {name: kernel_gradient(tiling) for name, tiling in tilings.items()}
    of_kernel = keep("gradient of kernel", piece_table(cases, half, gradient), tilings)

    pool = keep("norm and pool", *norm_table(block, half[0]))
    found = {"convolve": convolve, "transposed": transposed, "kernel_gradient": of_kernel, "pool": pool}
    return Tilings(**{name: tiling for name, tiling in found.items() if tiling})


def norm_table(block: int, raw):
    """Forward and backward of batch norm, pooling and ReLU."""
    side = SIDES[block] // 2
    scale, offset = normal(3, TASKS, variants.FILTERS), normal(4, TASKS, variants.FILTERS)
    cotangent = normal(5, TASKS, IMAGES, side, side, variants.FILTERS).astype(raw.dtype)

    def both(function):
        def run(raw, scale, offset, cotangent):
            value, transpose = jax.vjp(jax.vmap(function), raw, scale, offset)
            return value, transpose(cotangent.astype(value.dtype))

        return run

    tilings = {describe(tiling): tiling for tiling in POOL}
    cases = {"auto": both(variants.norm_pool_auto)}
    cases |= {name: both(functools.partial(variants.norm_pool_hand, name == "bits")) for name in ("hand", "bits")}
    cases |= {
        name: both(functools.partial(variants.norm_pool_kernel, Tilings(pool=tiling)))
        for name, tiling in tilings.items()
    }
    arguments = raw, scale, offset, cotangent
    reference = jax.jit(both(variants.norm_pool_auto))(raw.astype(jnp.float32), *arguments[1:])
    return piece_table(cases, arguments, reference), tilings


def first_tilings(tables: dict) -> Tilings:
    """Forward and backward of the first block; one tiling is varied at a time."""
    images = jnp.abs(normal(6, TASKS, IMAGES, 28, 28, 1)).astype(jnp.bfloat16)
    kernel = normal(7, TASKS, 3, 3, 1, variants.FILTERS, scale=1 / 3)
    scale, offset = normal(8, TASKS, variants.FILTERS), normal(9, TASKS, variants.FILTERS)
    cotangent = normal(10, TASKS, IMAGES, 14, 14, variants.FILTERS).astype(jnp.bfloat16)

    def both(variant):
        def run(images, kernel, scale, offset, cotangent):
            block = jax.vmap(functools.partial(variants.apply_block, variant, 0))
            value, transpose = jax.vjp(functools.partial(block, images), kernel, scale, offset)
            return value, transpose(cotangent.astype(value.dtype))

        return run

    kinds = {"first": FIRST, "first_gradient": FIRST_GRADIENT, "gram": GRAM}
    tilings = {
        f"{kind} {describe(tiling, 'splits')}": (kind, tiling) for kind, many in kinds.items() for tiling in many
    }
    cases = {"patches": both(Variant()), "patches, hand norm": both(Variant(norm="hand"))}
    for name, (kind, tiling) in tilings.items():
        cases[name] = both(Variant(first="kernel", tilings=(Tilings(**{kind: tiling}),) * 4))
    arguments = images, kernel, scale, offset, cotangent
    wide = images.astype(jnp.float32)
    rounded = kernel.astype(jnp.bfloat16).astype(jnp.float32)
    with jax.default_matmul_precision("highest"):
        reference = jax.jit(both(Variant(dtype="float32")))(wide, rounded, scale, offset, cotangent)
    rows = piece_table(cases, arguments, reference)
    tables["block 0"] = rows
    chosen = {}
    for kind in kinds:
        good = {name: row["us"] for name, row in rows.items() if name in tilings and row.get("error", 1) < 0.05}
        good = {name: elapsed for name, elapsed in good.items() if tilings[name][0] == kind}
        if good:
            chosen[kind] = tilings[min(good, key=good.__getitem__)][1]
    return Tilings(**chosen)


def steps() -> dict:
    rows: dict = {}
    arguments = problem()
    with jax.default_matmul_precision("highest"):
        reference = jax.jit(scan_of(Variant(dtype="float32")))(*arguments)
    for name, variant in VARIANTS.items():
        rows[name] = step_row(variant, arguments, reference)
        save("steps", rows)
    for tasks in (1,) if SMOKE else (1, 60):
        few = problem(tasks)
        for name in ("patches (library)", fastest(rows)):
            rows[f"{name}, {tasks} tasks"] = step_row(VARIANTS[name], few, None)
        save("steps", rows)
    return rows


def step_row(variant: Variant, arguments, reference) -> dict:
    started = time.perf_counter()
    try:
        program = jax.jit(scan_of(tuned(variant))).lower(*arguments).compile()
        compiling = time.perf_counter() - started
        elapsed, result = measure(program, arguments, repeats=10)
        row = {"ms": round(elapsed / 1e3 / STEPS, 4), "compile_s": round(compiling, 1)}
        return row | ({} if reference is None else {"error": distances(arguments[0], result, reference)})
    except Exception as error:
        return {"failed": last_words(error)}


def problem(tasks=TASKS):
    params = jax.vmap(variants.init)(jax.random.split(jax.random.key(0), tasks))
    # Strokes on a flat ground, as drawings are.
    noise = jax.random.uniform(jax.random.key(1), (STEPS, tasks, IMAGES, 28, 28, 1))
    labels = jnp.broadcast_to(jnp.arange(IMAGES, dtype=jnp.int32) % variants.CLASSES, (STEPS, tasks, IMAGES))
    return params, (jnp.where(noise > 0.8, noise, 0.0), labels)


RATE = 1e-4
"""So small that all steps are taken at nearly the same place, and what is summed is comparable."""


def scan_of(variant: Variant):
    gradient = jax.vmap(jax.value_and_grad(functools.partial(variants.cross_entropy, variant)))

    def run(params, batches):
        def step(params, batch):
            loss, slope = gradient(params, batch)
            return jax.tree.map(lambda p, s: p - RATE * s, params, slope), loss

        return jax.lax.scan(step, params, batches)

    return run


def distances(start, result, reference) -> dict:
    """Relative distance of the way gone by every module, and of the loss."""
    (params, losses), (wide_params, wide_losses) = result, reference

    def length(tree):
        return jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(tree)))

    rows = {}
    for name in start:
        difference = jax.tree.map(jnp.subtract, params[name], wide_params[name])
        way = jax.tree.map(jnp.subtract, wide_params[name], start[name])
        rows[name] = round(float(length(difference) / length(way)), 4)
    return rows | {"loss": round(float(jnp.max(jnp.abs(losses / wide_losses - 1))), 5)}


def tuned(variant: Variant) -> Variant:
    """With the tilings that `pieces` found fastest."""
    found = load().get("pieces", {}).get("tilings")
    if not found:
        return variant
    rebuilt = (Tilings(**{kernel: Tiling(**fields) for kernel, fields in block.items()}) for block in found)
    return replace(variant, tilings=tuple(rebuilt))


def fastest(rows: dict) -> str:
    names = {name: row["ms"] for name, row in rows.items() if name in VARIANTS and "ms" in row}
    return min(names, key=names.__getitem__, default="all kernels")


def two_variants() -> dict:
    best = fastest(load().get("steps", {}))
    return {name: VARIANTS[name] for name in ("patches (library)", best)}


def profile() -> dict:
    """Microseconds a step and number of launches a step of the costliest kernels."""
    rows = {}
    for name, variant in two_variants().items():
        arguments = problem()
        program = jax.jit(scan_of(tuned(variant))).lower(*arguments).compile()
        jax.block_until_ready(program(*arguments))
        with tempfile.TemporaryDirectory() as folder:
            with jax.profiler.trace(folder):
                jax.block_until_ready(program(*arguments))
            [path] = glob.glob(f"{folder}/**/*.xplane.pb", recursive=True)
            data = jax.profiler.ProfileData.from_file(path)
        spent, launches = collections.Counter(), collections.Counter()
        for plane in data.planes:
            if "GPU" in plane.name:
                for line in plane.lines:
                    for event in line.events if line.name.startswith("Stream") else ():
                        spent[event.name[:48]] += event.duration_ns / 1e3 / STEPS
                        launches[event.name[:48]] += 1
        rows[name] = {
            "busy us": round(sum(spent.values()), 1),
            "launches": round(sum(launches.values()) / STEPS, 1),
            "kernels": {
                kernel: [round(us, 1), round(launches[kernel] / STEPS, 1)] for kernel, us in spent.most_common(30)
            },
        }
        save("profile", rows)
    return rows


def adapt() -> dict:
    import shrinx as sx
    from shrinx.tasks.augment import Affine
    from shrinx.tasks.images import sample_augmented

    params, _ = problem(1)
    prior = sx.Prior.create(jax.tree.map(lambda leaf: leaf[0], params), variance=1.0)
    pool = 2 * IMAGES if SMOKE else 300
    images = jax.random.randint(jax.random.key(2), (TASKS, pool, 28, 28, 1), 0, 256).astype(jnp.uint8)
    labels = jnp.broadcast_to(jnp.arange(pool, dtype=jnp.int32) % variants.CLASSES, (TASKS, pool))
    sample = functools.partial(sample_augmented, size=IMAGES, affine=Affine())
    rows = {}
    for name, variant in two_variants().items():
        loss_fn = functools.partial(variants.cross_entropy, tuned(variant))

        def run(data, keys, loss_fn=loss_fn):
            def one(data, key):
                solver = sx.ProximalGD(0.1)
                return sx.adapt(loss_fn, prior, data, solver, num_steps=STEPS, key=key, sample=sample).params

            return jax.vmap(one)(data, keys)

        arguments = (images, labels), jax.random.split(jax.random.key(3), TASKS)
        elapsed, _ = measure(jax.jit(run), arguments, repeats=10)
        rows[name] = {"ms": round(elapsed / 1e3 / STEPS, 4)}
        save("adapt", rows)
    return rows


def flags() -> dict:
    """One row, for the flags in the environment."""
    rows = load().get("flags", {})
    arguments = problem()
    rows[os.environ["CONV_GPU_FLAGS"]] = {
        name: step_row(variant, arguments, None) for name, variant in two_variants().items()
    }
    return rows


# Running and reporting.


def normal(seed, *shape, scale=1.0):
    return scale * jax.random.normal(jax.random.key(seed), shape)


def load() -> dict:
    path = OUT / "conv_gpu.json"
    return json.loads(path.read_text()) if path.exists() else {}


def save(phase: str, rows: dict) -> None:
    (OUT / "conv_gpu.json").write_text(json.dumps(load() | {phase: rows}, indent=1))


PHASES = {"pieces": pieces, "steps": steps, "profile": profile, "adapt": adapt, "flags": flags}


def report(phase: str, rows: dict) -> None:
    for name, row in rows.items():
        if name == "tilings":
            continue
        if phase == "pieces":
            print(f"{name} (us/error): " + "; ".join(f"{key} {short(cell)}" for key, cell in row.items()))
        elif phase == "profile":
            print(f"{name}: {row['busy us']} us busy, {row['launches']} launches; us x launches a step of kernels:")
            top = list(row["kernels"].items())[:16]
            print("  " + "; ".join(f"{key[:30]} {us} x{count}" for key, (us, count) in top))
        elif phase == "flags":
            print(f"{name}: " + "; ".join(f"{key} {short(cell)}" for key, cell in row.items()))
        else:
            print(f"{name}: {short(row)}")


def short(row: dict) -> str:
    if "failed" in row:
        return f"FAILED {row['failed'][-120:]}"
    if "us" in row:
        return f"{row['us']}/{row['error']:.2g}"
    error = row.get("error")
    shown = {} if error is None else {name: error[name] for name in ("conv0", "conv3", "norm0", "loss")}
    return f"{row['ms']} ms " + " ".join(f"{name} {value:.2g}" for name, value in shown.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=225, help="no phase begins after these")
    parser.add_argument("--smoke", action="store_true", help="tiny, kernels interpreted, to see that it runs on a CPU")
    parser.add_argument("--phase", choices=PHASES, help="run one phase in this process, for debugging")
    options = parser.parse_args()
    if options.phase:
        jax.config.update("jax_compilation_cache_dir", f"{tempfile.gettempdir()}/conv_gpu_cache")
        save(options.phase, PHASES[options.phase]())
        return
    started = time.monotonic()
    (OUT / "conv_gpu.json").unlink(missing_ok=True)
    shares = {"pieces": 0.45, "steps": 0.75, "profile": 0.85, "adapt": 0.95}
    runs = [(phase, "") for phase in shares] + [("flags", name) for name in FLAGS]
    for phase, flag in runs:
        left = options.seconds * shares.get(phase, 1.0) - (time.monotonic() - started)
        if left < 5 and not SMOKE:
            print(f"== {phase} {flag}: no time left")
            continue
        crashed, trouble = run_phase(phase, flag, left, WORKERS)
        if crashed and phase == "pieces":
            print(f"== {phase}: crashed, once more with one compilation at a time. {trouble}", flush=True)
            _, trouble = run_phase(phase, flag, left, 1)
        print(f"== {phase} {flag} (until {time.monotonic() - started:.0f} s) {trouble}", flush=True)
        rows = load().get(phase, {})
        report(phase, {flag: rows.get(flag, {})} if flag else rows)


def run_phase(phase: str, flag: str, seconds: float, workers: int) -> tuple[bool, str]:
    """In a process of its own: whether it was killed by a signal, and what it said if it did not end well."""
    given = os.environ.get("XLA_FLAGS", "")
    environment = os.environ | {
        "XLA_FLAGS": f"{given} {'' if SMOKE else FLAGS.get(flag, '')}".strip(),
        "CONV_GPU_FLAGS": flag,
        "CONV_GPU_WORKERS": str(workers),
        "PYTHONPATH": f".:{os.environ.get('PYTHONPATH', '')}",
        "PYTHONWARNINGS": "ignore",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    command = [sys.executable, __file__, "--phase", phase, *(["--smoke"] if SMOKE else [])]
    limit = None if SMOKE else max(seconds, 30)
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return False, "stopped, out of time; what it had is below"
    trouble = "" if done.returncode == 0 else "\n".join(done.stderr.strip().splitlines()[-6:])[-900:]
    return done.returncode < 0, trouble


if __name__ == "__main__":
    main()
