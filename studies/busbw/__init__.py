"""Bus bandwidth of NCCL's collectives on a described cluster, as nccl-tests prints it.

    Preset (TOML) -> HostSpec, Constants, Scenario -> estimates by algorithm and protocol -> Row (time, algbw, busbw)

`collectives` names the collectives and their factors, `nccl_tuning` holds NCCL's published tuning constants,
`time_model` computes times from them, `traffic_patterns` and `wire` simulate the part between hosts on the packet
engine. `presets` reads clusters; `runner` makes tables, `nccl_tests_log` reads measured ones, `tables` and `plots`
present both. `gradwire.studies.clusters` fits the constants to measured clusters.
"""
