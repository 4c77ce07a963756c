"""Model of strong scaling: what a node computes in a step, how fast its cores are, and what the network adds.

    training_work (of a model) -> Node.compute_ps -> line_model.iteration_ps -> StrongScaling.speed_up

It derives the compute times that the claims of Lee et al. simulate, and how predictions move with uncertain inputs.
"""
