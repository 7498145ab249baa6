//! The list of all counters: [`Delta`], its subtraction and its names, from one table.

/// Declares [`Delta`] and the one list of its fields. `sum` fields grow for ever and are subtracted; `now` fields are
/// levels, of which the later one is kept.
macro_rules! counters {
    ($($(#[$doc:meta])* $rule:ident $field:ident: $kind:ty,)*) => {
        /// The difference between two snapshots. `Option`s are `None` where this kernel, container or watch has no
        /// such counter. Units are in the names; counts named as in `/proc/vmstat` are in pages or events, as there.
        #[derive(Debug, Clone, Copy, PartialEq, Default)]
        pub struct Delta {
            $($(#[$doc])* pub $field: $kind,)*
        }

        impl Delta {
            /// Every counter that exists here, by its field's name, for records. Names are stable.
            pub fn named(&self) -> Vec<(&'static str, f64)> {
                let mut named = Vec::new();
                $(if let Some(value) = self.$field.as_f64() {
                    named.push((stringify!($field), value));
                })*
                named
            }

            pub(super) fn minus(&self, earlier: &Self) -> Self {
                Self { $($field: counters!(@$rule self.$field, earlier.$field),)* }
            }
        }
    };
    (@sum $later:expr, $earlier:expr) => { $later.grown_since($earlier) };
    (@now $later:expr, $earlier:expr) => { $later };
}

counters! {
    /// Elapsed time (CLOCK_MONOTONIC).
    sum wall_s: f64,
    /// CPU time of this process in user mode. The split into user and system is by clock ticks on some kernels; their
    /// sum is exact.
    sum own_cpu_user_s: f64,
    /// CPU time of this process in the kernel, page faults and direct reclaim included.
    sum own_cpu_system_s: f64,
    /// User CPU of children that have ended and been waited for.
    sum children_cpu_user_s: f64,
    /// System CPU of children that have ended and been waited for.
    sum children_cpu_system_s: f64,
    /// Page faults of this process that needed no I/O. Not pages: fault-around and large folios map many at once.
    sum minor_faults: u64,
    /// Page faults of this process that waited for a read they started themselves.
    sum major_faults: u64,
    /// Times a thread of this process gave up the CPU to wait.
    sum voluntary_switches: u64,
    /// Times a thread of this process was made to give up the CPU.
    sum involuntary_switches: u64,
    /// Bytes that devices read on behalf of this process.
    sum own_device_read_bytes: Option<u64>,
    /// Bytes this process caused to be written to devices; for buffered writes counted when a page becomes dirty.
    sum own_device_write_bytes: Option<u64>,
    /// TLB shootdown interrupts, over all CPUs (x86; other machines flush without interrupts).
    sum tlb_shootdowns: Option<u64>,
    /// Function-call interrupts, over all CPUs. Some kernels flush TLBs by these.
    sum function_call_interrupts: Option<u64>,
    /// Rescheduling interrupts, over all CPUs.
    sum rescheduling_interrupts: Option<u64>,
    /// Remote TLB flushes sent (kernels with CONFIG_DEBUG_TLBFLUSH).
    sum nr_tlb_remote_flush: Option<u64>,
    /// Remote TLB flushes received (CONFIG_DEBUG_TLBFLUSH).
    sum nr_tlb_remote_flush_received: Option<u64>,
    /// Whole local TLB flushes (CONFIG_DEBUG_TLBFLUSH).
    sum nr_tlb_local_flush_all: Option<u64>,
    /// Single local TLB flushes (CONFIG_DEBUG_TLBFLUSH).
    sum nr_tlb_local_flush_one: Option<u64>,
    /// CPU of all kswapd threads, in clock ticks; `None` where they cannot be seen.
    sum kswapd_cpu_s: Option<f64>,
    /// CPU of all DAMON daemons; `None` where there is none.
    sum kdamond_cpu_s: Option<f64>,
    /// CPU of the whole machine that did work: user, nice, system, interrupts.
    sum system_busy_s: Option<f64>,
    /// CPU that the hypervisor gave to others while this machine wanted it.
    sum steal_s: Option<f64>,
    /// CPU idle with I/O outstanding. A hint only; the kernel calls it unreliable.
    sum iowait_s: Option<f64>,
    /// Faults of the whole machine, major ones included.
    sum pgfault: Option<u64>,
    /// Major faults of the whole machine.
    sum pgmajfault: Option<u64>,
    /// KiB read from block devices by the whole machine.
    sum pgpgin: Option<u64>,
    /// KiB written to block devices by the whole machine.
    sum pgpgout: Option<u64>,
    /// Pages that kswapd scanned.
    sum pgscan_kswapd: Option<u64>,
    /// Pages that allocating threads scanned; cgroup reclaim is not in it.
    sum pgscan_direct: Option<u64>,
    /// Page-cache pages that any thread scanned, cgroup reclaim included.
    sum pgscan_file: Option<u64>,
    /// Anonymous pages that any thread scanned.
    sum pgscan_anon: Option<u64>,
    /// Pages that kswapd freed.
    sum pgsteal_kswapd: Option<u64>,
    /// Pages that allocating threads freed; cgroup reclaim is not in it.
    sum pgsteal_direct: Option<u64>,
    /// Page-cache pages freed by any thread, cgroup reclaim included.
    sum pgsteal_file: Option<u64>,
    /// Anonymous pages freed by any thread.
    sum pgsteal_anon: Option<u64>,
    /// Allocations that had to reclaim first, over all zones.
    sum allocstall: Option<u64>,
    /// Times kswapd ran to balance a node.
    sum pageoutrun: Option<u64>,
    /// Page-cache pages read again soon after they were evicted.
    sum workingset_refault_file: Option<u64>,
    /// Refaulted pages put on the active list at once.
    sum workingset_activate_file: Option<u64>,
    /// Huge pages given at a fault.
    sum thp_fault_alloc: Option<u64>,
    /// Faults that wanted a huge page and got small ones.
    sum thp_fault_fallback: Option<u64>,
    /// Huge pages made by khugepaged.
    sum thp_collapse_alloc: Option<u64>,
    /// Huge pages mapped from a file.
    sum thp_file_mapped: Option<u64>,
    /// Huge pages split up.
    sum thp_split_page: Option<u64>,
    /// Allocations that had to compact memory first.
    sum compact_stall: Option<u64>,
    /// Size of the page cache now.
    now page_cache_bytes: Option<u64>,
    /// Free memory now.
    now free_bytes: Option<u64>,
    /// Memory that could be had without swapping now, by the kernel's estimate.
    now available_bytes: Option<u64>,
    /// Page cache waiting to be written now.
    now dirty_bytes: Option<u64>,
    /// Page tables of all processes now.
    now page_tables_bytes: Option<u64>,
    /// Reads that the watched devices completed.
    sum device_reads: Option<u64>,
    /// Bytes that the watched devices read.
    sum device_read_bytes: Option<u64>,
    /// Writes that the watched devices completed.
    sum device_writes: Option<u64>,
    /// Bytes that the watched devices wrote.
    sum device_write_bytes: Option<u64>,
    /// Flushes of the watched devices' write caches.
    sum device_flushes: Option<u64>,
    /// Time in which a watched device had at least one request; several devices add up.
    sum device_busy_s: Option<f64>,
    /// Time of all requests of the watched devices, added up: divided by wall time it is the mean queue depth.
    sum device_queue_s: Option<f64>,
    /// Time in which some task waited for a CPU.
    sum psi_cpu_some_us: Option<u64>,
    /// Time in which all tasks waited for a CPU (zero for the whole machine by definition).
    sum psi_cpu_full_us: Option<u64>,
    /// Time in which some task waited for memory.
    sum psi_memory_some_us: Option<u64>,
    /// Time in which all tasks waited for memory.
    sum psi_memory_full_us: Option<u64>,
    /// Time in which some task waited for I/O.
    sum psi_io_some_us: Option<u64>,
    /// Time in which all tasks waited for I/O.
    sum psi_io_full_us: Option<u64>,
    /// Memory charged to the watched cgroup now.
    now cgroup_memory_bytes: Option<u64>,
    /// Page cache charged to the watched cgroup now.
    now cgroup_page_cache_bytes: Option<u64>,
    /// Times the watched cgroup reached its memory limit.
    sum cgroup_limit_hits: Option<u64>,
    /// Pages scanned in the watched cgroup (version 2 only).
    sum cgroup_pgscan: Option<u64>,
    /// Pages freed in the watched cgroup (version 2 only).
    sum cgroup_pgsteal: Option<u64>,
    /// Faults in the watched cgroup.
    sum cgroup_pgfault: Option<u64>,
    /// Major faults in the watched cgroup.
    sum cgroup_pgmajfault: Option<u64>,
    /// Page-cache pages of the watched cgroup read again soon after eviction.
    sum cgroup_workingset_refault_file: Option<u64>,
    /// CPU of the watched cgroup (version 2 only).
    sum cgroup_cpu_s: Option<f64>,
    /// Time in which some task of the watched cgroup waited for memory (version 2 only).
    sum cgroup_psi_memory_some_us: Option<u64>,
    /// Time in which all tasks of the watched cgroup waited for memory (version 2 only).
    sum cgroup_psi_memory_full_us: Option<u64>,
}

/// Subtraction and formatting of a counter of either kind.
trait Counter: Copy {
    fn grown_since(self, earlier: Self) -> Self;
    fn as_f64(self) -> Option<f64>;
}

impl Counter for u64 {
    fn grown_since(self, earlier: Self) -> Self {
        self.saturating_sub(earlier)
    }
    fn as_f64(self) -> Option<f64> {
        Some(self as f64)
    }
}

impl Counter for f64 {
    fn grown_since(self, earlier: Self) -> Self {
        (self - earlier).max(0.0)
    }
    fn as_f64(self) -> Option<f64> {
        Some(self)
    }
}

impl<T: Counter> Counter for Option<T> {
    fn grown_since(self, earlier: Self) -> Self {
        Some(self?.grown_since(earlier?))
    }
    fn as_f64(self) -> Option<f64> {
        self?.as_f64()
    }
}
