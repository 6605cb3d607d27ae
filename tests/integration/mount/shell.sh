#!/bin/bash
# Work with a tracefs directory as people do, with nothing but a shell.
#
#     shell.sh DIR EMIT
#
# DIR is the directory. EMIT is a command that emits one record: `EMIT NAME VALUE...`. What differs from run to
# run (pids, times, cpus) is cut off, so that the output can be compared.
set -u
cd "$1" || exit
emit=$2
scratch=$(mktemp -d) || exit
trap 'rm -rf "$scratch"' EXIT
shop=events/user_events/shop

step() { printf '== %s\n' "$*"; }
records() { grep -v '^#' "$@" | sed -E 's/^.{16}-[0-9 ]{7} \[[0-9]+\] [^ ]+ +[0-9.]+: //'; }
try() { "$@" 2>"$scratch/error" || sed -E 's/^.*: //' "$scratch/error"; }

step define
echo 'u:shop u32 count; char[8] what' >> dynamic_events
echo 'u:other' >> dynamic_events
cat dynamic_events
ls events/user_events
sed -n '/^format:/,$p' $shop/format | grep -v common_

step refuse
try eval 'echo "u:shop u64 count" >> dynamic_events'
try eval 'echo on > tracing_on'
try eval 'echo > newfile'
try mkdir events/new
try rm trace

step enable
cat $shop/enable
echo 1 > $shop/enable
cat $shop/enable events/user_events/enable set_event
echo other >> set_event
sort set_event
echo '!other' >> set_event
grep shop user_events_status

step record
$emit shop 1 one
echo a marker > trace_marker
$emit shop 2 two
records trace
echo 0 > tracing_on
$emit shop 3 three
echo 1 > tracing_on
records trace | wc -l
echo > trace
records trace | wc -l

step save and restore
cat dynamic_events > "$scratch/saved"
echo 0 > events/enable
echo > dynamic_events
cat dynamic_events
cat "$scratch/saved" > dynamic_events
cat dynamic_events
echo 1 > $shop/enable

step filter
echo 'count > 10 && what == "many"' > $shop/filter
cat $shop/filter
for count in 5 11 12; do $emit shop $count many; done
$emit shop 13 few
records trace
try eval 'echo "nofield == 1" > $shop/filter'
cat $shop/filter
tail -n 3 error_log | sed -E 's/^\[ *[0-9.]+\] //'
echo 0 > $shop/filter
cat $shop/filter
echo > error_log
cat error_log
echo > trace

step trigger
echo 'traceoff:1 if count == 99' > $shop/trigger
cat $shop/trigger
$emit shop 98 before
$emit shop 99 last
$emit shop 100 after
cat tracing_on $shop/trigger
records trace
echo '!traceoff' >> $shop/trigger
grep -v '^#' $shop/trigger
echo 1 > tracing_on
cat $shop/enable
echo > trace

step hist
echo 'hist:keys=what:vals=count:sort=what' > $shop/trigger
$emit shop 1 a
$emit shop 2 b
$emit shop 3 a
sed -E 's/ +$//' $shop/hist
echo '!hist:keys=what:vals=count:sort=what' >> $shop/trigger
wc -c < $shop/hist
echo > trace

step instance
mkdir instances/one
ls instances
echo 1 > instances/one/$shop/enable
echo 'count == 7' > instances/one/$shop/filter
$emit shop 7 seven
$emit shop 8 eight
records instances/one/trace
records trace
cat $shop/filter
try mkdir instances/one
rmdir instances/one
ls instances
echo > trace

step snapshot
$emit shop 1 first
echo 1 > snapshot
$emit shop 2 second
records snapshot
records trace
echo 0 > snapshot
records snapshot | wc -l
echo > trace

step trace_pipe in the background
cat trace_pipe > "$scratch/pipe" &
reader=$!
$emit shop 1 piped
echo a marker > trace_marker
for _ in $(seq 1000); do
    [ "$(wc -l < "$scratch/pipe")" -ge 2 ] && break
    sleep 0.01
done
kill $reader
wait $reader 2>/dev/null
records "$scratch/pipe"
records trace | wc -l

step remove
echo 0 > events/enable
try eval 'echo "!u:shop" >> dynamic_events'
echo '!u:shop u32 count; char[8] what' >> dynamic_events
cat dynamic_events
ls events/user_events
