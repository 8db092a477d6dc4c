"""How small programs are compiled where only what they compute matters: to compile them is most of the time."""

QUICK = "--xla_backend_optimization_level=0 --xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters=true"
