"""Source edits for a User-Mode Linux with exact time, repeatable runs, and better speed.

Every pattern must match exactly once in its file, so that an unsuitable source is rejected. They fit Linux 6.1 and
6.12.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from gradwire.emu.switches.backend_kind import TestbedError

SOURCE = "the source of Linux 6.1 or 6.12"


class Edit(NamedTuple):
    """A replacement of `pattern` by `new` in `file`, only if the file contains `where`."""

    file: str
    pattern: str
    new: str
    where: str = ""


EXACT: tuple[Edit, ...] = (
    # The timer wheel of a 100 Hz kernel rounds retransmission timers to 10 ms; UML has no other option.
    Edit("arch/um/Kconfig", r"(config HZ\s+int\s+default )100\b", r"\g<1>1000"),
    # Clock steps of 256 ns and timers of at least 500 ns are both visible at 10 Gbit/s.
    Edit("arch/um/include/linux/time-internal.h", r"#define TIMER_MULTIPLIER 256", "#define TIMER_MULTIPLIER 1"),
    Edit("arch/um/include/linux/time-internal.h", r"#define TIMER_MIN_DELTA  500", "#define TIMER_MIN_DELTA 1"),
    # Every timer fires a nanosecond late, which adds up in chains of timers.
    Edit("arch/um/kernel/time.c", r"\tdelta \+= 1;", "\tif (!delta)\n\t\tdelta = 1;"),
    # Reading the clock takes time, so that polling loops end. Nine processes that read it several times per packet
    # then slow each other down by a third; once in 4096 reads is enough.
    Edit(
        "arch/um/kernel/time.c",
        r"\t\t\ttime_travel_update_time_rel\(TIMER_MULTIPLIER\);",
        """\t\t{
\t\t\tstatic unsigned int looks;

\t\t\tif (!(++looks & 4095))
\t\t\t\ttime_travel_update_time_rel(TIMER_MULTIPLIER);
\t\t}""",
    ),
    # A failing system call, such as a non-blocking read, takes a microsecond. Even a nanosecond would add up: a paced
    # sender that polls after each packet would lose one per packet.
    Edit(
        "arch/um/kernel/skas/syscall.c",
        r"\t\t\tum_udelay\(1\);",
        """\t\t{
\t\t\tstatic unsigned int failures;

\t\t\tif (!(++failures & 4095))
\t\t\t\tum_ndelay(1);
\t\t}""",
    ),
    # The command line contains the name of a temporary file, which is random.
    Edit("drivers/char/random.c", r"\t_mix_pool_bytes\(command_line, strlen\(command_line\)\);\n", ""),
    # Random numbers of the host would make runs differ: sequence numbers, hashes, losses. The kernel gets all of
    # them here. splitmix64 [Steele, Lea, Flood, OOPSLA 2014].
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
"""Edits for exact time and repeatable runs."""

QUICK: tuple[Edit, ...] = (
    # A traced process stops three times per page fault, for some 30 us. So the first write to a page also maps
    # untouched pages around it, and three neighbours of a page shared with the parent are copied too. File pages read
    # ahead around a page [mm/filemap.c, fault_around_bytes] are mapped at once.
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
    # Linux 6.1 updates mappings at every flush of a page, including one before its copy exists: a page that is mapped
    # at the end need not be unmapped first.
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
    # Floating-point registers are read at every stop. They are written only if they differ from those read last, since
    # writing uses the outer kernel's allocator of large blocks; and a fault need not read and write them again.
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
    # A new process may reuse a number; in Linux 6.1 it is made from the registers of its parent.
    Edit(
        "arch/um/os-Linux/skas/process.c", r"\tdo \{\n(?=\t\tCATCH_EINTR\(n = waitpid\()", "\tforget_fp(pid);\n\tdo {\n"
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
"""Edits that reduce the run time of virtual machines by a third."""

EDITS = (*EXACT, *QUICK)


def edit(source: Path) -> None:
    """Edit an unpacked source; raise TestbedError if a pattern does not match exactly once."""
    for rule in EDITS:
        path = source / rule.file
        text = path.read_text()
        if rule.where not in text:
            continue
        new = rule.new if "\\g<" in rule.new else rule.new.replace("\\", "\\\\")
        text, count = re.subn(rule.pattern, new, text)
        if count != 1:
            what = f"pattern in {path.name} matches {count} times; expected 1"
            raise TestbedError(what, "the virtual-time kernel", SOURCE)
        path.write_text(text)
