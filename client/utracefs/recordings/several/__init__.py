"""The records of several files, merged by time.

| module | |
|---|---|
| timeline | the times of one file among those of others |
| _sources | the merge of their records, compiled |
"""
