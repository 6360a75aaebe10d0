// For filters of system calls: ends the process at this one.
#include <linux/filter.h>
#include <linux/seccomp.h>

#define ENDS(call) \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1), \
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)
