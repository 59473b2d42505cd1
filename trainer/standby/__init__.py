"""The warm standby: a process that has imported what a rank needs, and forks ranks of local jobs (paper IV-E).

Three kinds of processes, none with a thread besides its main one: the standby waits for jobs; a keeper, forked for each
job, is the parent of the job's ranks for as long as the job's supervisor is connected; a rank runs the job's module as
`python -m` would. The standby may come and go without a rank noticing. A keeper and its ranks leave together.
"""
