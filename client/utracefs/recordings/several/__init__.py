"""Several recordings as one, merged by time.

| module | |
|---|---|
| merged | `MergedRecording`: `utracefs.open` returns it for several files |
| timeline | the times of one recording among those of others |
| _sources | the merge of their records, compiled |
"""
