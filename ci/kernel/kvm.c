// SPDX-License-Identifier: GPL-2.0
// A module with KVM's name and the function by which dimmer_xcr0 knows it, and nothing else: for
// the tests.
#include <linux/module.h>

void kvm_get_kvm(void);
void kvm_get_kvm(void)
{
}
EXPORT_SYMBOL_GPL(kvm_get_kvm);

MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Not KVM");
