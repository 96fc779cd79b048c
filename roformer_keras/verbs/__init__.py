"""The verbs: what a model can be asked, with its options, its checks and its answer.

Each is one dataclass, whose fields are the options. The command, the job on Ray, the
function on a dataset of Ray and the HTTP route are made from it. No module here imports
a backend before a model is loaded.
"""
