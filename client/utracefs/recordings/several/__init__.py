"""Several recordings as one, merged by time.

| module | |
|---|---|
| merged | `MergedRecording`, what `utracefs.open` returns for several files |
| timeline | the times of one recording among those of others |
| _sources | the merge of their records, compiled |
"""
