#!/bin/sh
# The loader of a made-up machine's scheduler, in bin/ there: makes CPUs narrow until SIGTERM ends
# it, as the real one (bpf/specialise.c) does. Fails at once if the machine has a file `fails`.
root=${0%/bin/*}
narrow=$root/sys/kernel/dimmer_xcr0/narrow
if [ -e "$root/fails" ]; then
    echo "dimmer-specialise: the kernel refuses the scheduler" >&2
    exit 1
fi
trap 'echo >"$narrow"; echo "began 5"; exit 0' TERM
echo $$ >"$root/loader"
echo "$@" >"$root/asked"
echo 2-3,6-7 >"$narrow"
while :; do
    sleep 0.02
done
