# A program with functions of known classes, for tests of profiles.
    .intel_syntax noprefix
    .text
    .globl _start
    .type _start, @function
_start:
    xor ebp, ebp
    mov rbp, rsp
    mov r12d, 60
1:  call heavy
    call narrow
    call mixed
    dec r12d
    jnz 1b
    mov eax, 60
    xor edi, edi
    syscall
    .size _start, .-_start

    .type heavy, @function
heavy:
    push rbp
    mov rbp, rsp
    call multiply_512
    pop rbp
    ret
    .size heavy, .-heavy

    .type multiply_512, @function
multiply_512:
    push rbp
    mov rbp, rsp
    mov ecx, 2000000
1:  vfmadd231pd zmm0, zmm1, zmm2
    dec ecx
    jnz 1b
    vzeroupper
    pop rbp
    ret
    .size multiply_512, .-multiply_512

    .type narrow, @function
narrow:
    push rbp
    mov rbp, rsp
    mov ecx, 4000000
1:  imul eax, ecx
    dec ecx
    jnz 1b
    pop rbp
    ret
    .size narrow, .-narrow

# One wide instruction at its start, and none near its loop.
    .type mixed, @function
mixed:
    push rbp
    mov rbp, rsp
    vpaddd ymm0, ymm1, ymm2
    vzeroupper
    .rept 100
    nop
    .endr
    mov ecx, 4000000
1:  imul eax, ecx
    dec ecx
    jnz 1b
    pop rbp
    ret
    .size mixed, .-mixed
