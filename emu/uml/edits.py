"""Edits of a kernel's source that make a User-Mode Linux whose time is exact, whose runs repeat, and that is quick.

Every pattern has to be found exactly once in its file, so that a source which is not what these were written for is
refused. They fit Linux 6.1 and 6.12.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from gradwire.emu.switches.base import TestbedError

SOURCE = "the source of Linux 6.1 or 6.12"


class Edit(NamedTuple):
    """In `file` what `pattern` finds is replaced by `new`. `where` : only in a file that has this text."""

    file: str
    pattern: str
    new: str
    where: str = ""


EXACT: tuple[Edit, ...] = (
    # The timer wheel of a 100 Hz kernel rounds retransmission timers to 10 ms; nothing else can be chosen for UML.
    Edit("arch/um/Kconfig", r"(config HZ\s+int\s+default )100\b", r"\g<1>1000"),
    # A clock that counts in 256 ns, and no timer sooner than 500 ns: both are visible at 10 Gbit/s.
    Edit("arch/um/include/linux/time-internal.h", r"#define TIMER_MULTIPLIER 256", "#define TIMER_MULTIPLIER 1"),
    Edit("arch/um/include/linux/time-internal.h", r"#define TIMER_MIN_DELTA  500", "#define TIMER_MIN_DELTA 1"),
    # Every timer goes off a nanosecond late, which adds up where each is set by the one before.
    Edit("arch/um/kernel/time.c", r"\tdelta \+= 1;", "\tif (!delta)\n\t\tdelta = 1;"),
    # Looking at the clock takes time there, so that loops that wait by looking end. Nine processes that look at it
    # several times for every packet then slow each other down by a third; once in 4096 times is enough.
    Edit(
        "arch/um/kernel/time.c",
        r"\t\t\ttime_travel_update_time_rel\(TIMER_MULTIPLIER\);",
        """\t\t{
\t\t\tstatic unsigned int looks;

\t\t\tif (!(++looks & 4095))
\t\t\t\ttime_travel_update_time_rel(TIMER_MULTIPLIER);
\t\t}""",
    ),
    # So does every system call that fails, a microsecond, such as reading what is not there yet. Even a nanosecond each
    # adds up: who paces packets and looks for news after each falls behind by one per packet.
    Edit(
        "arch/um/kernel/skas/syscall.c",
        r"\t\t\tum_udelay\(1\);",
        """\t\t{
\t\t\tstatic unsigned int failures;

\t\t\tif (!(++failures & 4095))
\t\t\t\tum_ndelay(1);
\t\t}""",
    ),
    # The command line has the name of a temporary file in it, which makes it a source of randomness.
    Edit(
        "drivers/char/random.c",
        r"\t_mix_pool_bytes\(command_line, strlen\(command_line\)\);\n",
        "",
    ),
    # Random numbers of the host would make every run another one: sequence numbers, hashes, losses. The kernel
    # asks for them here and nowhere else. splitmix64 [Steele, Lea, Flood, OOPSLA 2014].
    Edit(
        "arch/um/os-Linux/util.c",
        r"\treturn getrandom\(buf, len, flags\);",
        """\tstatic unsigned long long state;
\tstatic int seeded;
\tunsigned char *out = buf;
\tsize_t at;

\t(void)flags;
\tif (!seeded) {
\t\tconst char *seed = getenv("GRADWIRE_SEED");

\t\tif (seed)
\t\t\tstate = strtoull(seed, NULL, 10);
\t\tseeded = 1;
\t}
\tfor (at = 0; at < len; at++) {
\t\tunsigned long long z = (state += 0x9e3779b97f4a7c15ULL);

\t\tz = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
\t\tz = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
\t\tout[at] = (unsigned char)((z ^ (z >> 31)) >> 32);
\t}
\treturn len;""",
    ),
)
"""What makes time exact and runs repeat."""

QUICK: tuple[Edit, ...] = (
    # A process that is traced stops three times for every fault of a page, for some 30 us. So a page that a process
    # writes to for the first time comes with those around it that nobody has touched, and of pages that it shares with
    # its parent three neighbours are copied, too. What has been read around a page of a file [mm/filemap.c,
    # fault_around_bytes] is mapped here as well, at once.
    Edit(
        "arch/um/kernel/trap.c",
        r"(?=/\*\n \* Note this is constrained to return 0, -EFAULT)",
        """#define AROUND 0x10000UL
#define COPIED 0x4000UL

static vm_fault_t fault_around(struct vm_area_struct *vma, unsigned long address, unsigned int flags,
\t\t\t       unsigned long from, unsigned long until)
{
\tvm_fault_t fault;

\tcurrent->thread.flush_from = from;
\tcurrent->thread.flush_until = until;
\tfault = handle_mm_fault(vma, address, flags, NULL);
\tcurrent->thread.flush_until = 0;
\tif (fault & VM_FAULT_ERROR)
\t\tflush_tlb_range(vma, from, until);
\treturn fault;
}

""",
    ),
    Edit(
        "arch/um/kernel/trap.c",
        r"\tunsigned int flags = FAULT_FLAG_DEFAULT;\n",
        "\tunsigned int flags = FAULT_FLAG_DEFAULT;\n\tunsigned long from, until, at;\n",
    ),
    Edit(
        "arch/um/kernel/trap.c",
        r"\tdo \{\n\t\tvm_fault_t fault;\n\n\t\tfault = handle_mm_fault\(vma, address, flags, NULL\);\n",
        """\tfrom = max(vma->vm_start, address & ~(AROUND - 1));
\tuntil = min(vma->vm_end, (address & ~(AROUND - 1)) + AROUND);
\tdo {
\t\tvm_fault_t fault;

\t\tfault = fault_around(vma, address, flags, from, until);
""",
    ),
    Edit(
        "arch/um/kernel/trap.c",
        r"#endif\n(?:\tflush_tlb_page\(vma, address\);)?\nout:\n",
        """#endif
\tfor (at = from; at < until && is_user && is_write && !(vma->vm_flags & VM_SHARED); at += PAGE_SIZE) {
\t\tpte_t there = *pte_offset_kernel(pmd, at);

\t\tif (pte_none(there) ? !vma_is_anonymous(vma) :
\t\t    !pte_present(there) || pte_write(there) || (at ^ address) >= COPIED)
\t\t\tcontinue;
\t\tif (fault_around(vma, at, FAULT_FLAG_USER | FAULT_FLAG_WRITE, from, until) & VM_FAULT_ERROR)
\t\t\tbreak;
\t}
\tflush_tlb_range(vma, from, until);
out:
""",
    ),
    Edit(
        "arch/um/include/asm/processor-generic.h",
        r"struct thread_struct \{\n",
        "struct thread_struct {\n\tunsigned long flush_from, flush_until;\n",
    ),
    # Linux 6.1 changes what is mapped with every page that is said to have changed, and one is said to be gone before
    # its copy is there: what is mapped in the end anyway need not be taken out first.
    Edit(
        "arch/um/kernel/tlb.c",
        r"\tvoid \*flush = NULL;\n\tint r, w, x, prot, err = 0;\n\tstruct mm_id \*mm_id;\n\n\taddress &= PAGE_MASK;\n",
        """\tvoid *flush = NULL;
\tint r, w, x, prot, err = 0;
\tstruct mm_id *mm_id;

\taddress &= PAGE_MASK;
\tif (mm == current->mm && address >= current->thread.flush_from && address < current->thread.flush_until)
\t\treturn;
""",
        "void flush_tlb_page(",
    ),
    # Registers of floating-point numbers are read at every stop. They are written only where they are not what was read
    # last, for writing takes the outer kernel's allocator of large pieces; and a fault need not read and write them
    # once more.
    Edit(
        "arch/um/os-Linux/skas/process.c",
        r"extern unsigned long current_stub_stack\(void\);\n",
        """extern unsigned long current_stub_stack(void);

static struct known_fp {
\tint pid;
\tunsigned long fp[FP_SIZE];
} known_fps[64];

static void forget_fp(int pid)
{
\tknown_fps[pid % 64].pid = 0;
}

static int get_known_fp(int pid, unsigned long *fp)
{
\tstruct known_fp *known = &known_fps[pid % 64];
\tint err = get_fp_registers(pid, fp);

\tknown->pid = err ? 0 : pid;
\tmemcpy(known->fp, fp, sizeof(known->fp));
\treturn err;
}

static int put_changed_fp(int pid, unsigned long *fp)
{
\tstruct known_fp *known = &known_fps[pid % 64];

\tif (known->pid == pid && !memcmp(known->fp, fp, sizeof(known->fp)))
\t\treturn 0;
\tforget_fp(pid);
\treturn put_fp_registers(pid, fp);
}
""",
    ),
    Edit(
        "arch/um/os-Linux/skas/process.c",
        r"\terr = get_fp_registers\(pid, aux_fp_regs\);\n\tif \(err < 0\) \{\n.*\n.*\n\t\tfatal_sigsegv\(\);\n\t\}\n",
        "\tforget_fp(pid);\n",
    ),
    Edit(
        "arch/um/os-Linux/skas/process.c",
        r"\n\terr = put_fp_registers\(pid, aux_fp_regs\);\n\tif \(err < 0\) \{\n.*\n.*\n\t\tfatal_sigsegv\(\);\n\t\}\n",
        "",
    ),
    Edit("arch/um/os-Linux/skas/process.c", r"put_fp_registers\(pid, regs->fp\)", "put_changed_fp(pid, regs->fp)"),
    Edit("arch/um/os-Linux/skas/process.c", r"get_fp_registers\(pid, regs->fp\)", "get_known_fp(pid, regs->fp)"),
    # A new process may have the number of one that is gone; in Linux 6.1 one is made by the registers of its parent.
    Edit(
        "arch/um/os-Linux/skas/process.c",
        r"\tdo \{\n(?=\t\tCATCH_EINTR\(n = waitpid\()",
        "\tforget_fp(pid);\n\tdo {\n",
    ),
    Edit(
        "arch/um/os-Linux/skas/process.c",
        r"\terr = put_fp_registers\(pid, thread_fp_regs\);",
        "\tforget_fp(pid);\n\terr = put_fp_registers(pid, thread_fp_regs);",
        "int copy_context_skas0(",
    ),
    Edit(
        "arch/um/os-Linux/skas/process.c",
        r"\twait_stub_done\(pid\);\n(?=\tif \(child_data->child_err)",
        "\twait_stub_done(pid);\n\tforget_fp(pid);\n",
        "int copy_context_skas0(",
    ),
)
"""What makes virtual machines take two thirds of the time."""

EDITS = (*EXACT, *QUICK)


def edit(source: Path) -> None:
    """Edit an unpacked source. TestbedError if a place is not found, or more than one."""
    for each in EDITS:
        path = source / each.file
        text = path.read_text()
        if each.where not in text:
            continue
        new = each.new if "\\g<" in each.new else each.new.replace("\\", "\\\\")
        text, count = re.subn(each.pattern, new, text)
        if count != 1:
            what = f"{path.name}: expected one place to edit, found {count}"
            raise TestbedError(what, "the virtual-time kernel", SOURCE)
        path.write_text(text)
