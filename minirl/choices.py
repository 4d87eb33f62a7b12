"""The tables of names that a configuration chooses values from."""

from enum import StrEnum


class Advantage(StrEnum):
    group_mean = "group_mean"
    group_mean_std = "group_mean_std"
    leave_one_out = "leave_one_out"


class Level(StrEnum):
    none = "none"
    token = "token"
    sequence = "sequence"
    geometric = "geometric"


class Outside(StrEnum):
    clamp = "clamp"
    zero = "zero"


class Region(StrEnum):
    none = "none"
    ratio = "ratio"
    tv = "tv"
    kl = "kl"
    soft = "soft"


class Anchor(StrEnum):
    old = "old"
    mu = "mu"


class GroupFilter(StrEnum):
    all = "all"
    mixed = "mixed"


class Truncated(StrEnum):
    keep = "keep"
    drop = "drop"


class AggregationKind(StrEnum):
    seq_mean_token_sum = "seq_mean_token_sum"
    seq_mean_token_mean = "seq_mean_token_mean"
    token_mean = "token_mean"
    group_token_mean = "group_token_mean"
    token_sum_norm = "token_sum_norm"


class Routing(StrEnum):
    live = "live"
    r2 = "r2"
    r3 = "r3"


class RoutingMissing(StrEnum):
    fail = "fail"
    live = "live"
    drop = "drop"


class Numerics(StrEnum):
    fp32 = "fp32"
    bf16 = "bf16"
    fp8 = "fp8"
    fp8_weights = "fp8_weights"
    int4 = "int4"
    router_noise = "router_noise"


class Placement(StrEnum):
    colocated = "colocated"
    separate = "separate"
    shared = "shared"


class GoldForm(StrEnum):
    whole = "whole"
    boxed = "boxed"
    after_hashes = "after_hashes"


class AnswerFormat(StrEnum):
    boxed = "boxed"
    last_number = "last_number"
    choice = "choice"
    json = "json"


class GradientClip(StrEnum):
    none = "none"
    global_norm = "global_norm"


class Gpu(StrEnum):
    a100_40gb = "a100_40gb"
    a100_80gb = "a100_80gb"
    h100 = "h100"
    h200 = "h200"
    h20 = "h20"
    b200 = "b200"
    l40s = "l40s"
    rtx_4090 = "rtx_4090"


# a word that Python keeps for itself
OnCollapse = StrEnum("OnCollapse", {"stop": "stop", "continue": "continue"})
