use super::*;

fn plan<'a>(watch: &'a Watch, cancel: &'a AtomicBool, ms: u64) -> Measurement<'a> {
    let tick = Duration::from_millis(10);
    Measurement { duration: Duration::from_millis(ms), tick, watch, memory_bytes: None, fill_first: false, cancel }
}

#[test]
fn ticks_add_up_to_the_whole_and_workers_are_summed() {
    let (watch, cancel) = (Watch::new(), AtomicBool::new(false));
    let work = || -> Work<'static> {
        Box::new(|worker| {
            worker.start();
            while worker.running() {
                std::thread::sleep(Duration::from_millis(1));
                worker.done(1, 10);
                worker.latency("op", Duration::from_millis(1));
                worker.verified(true);
            }
            Ok(())
        })
    };
    let mut seen = 0;
    let outcome = run(&plan(&watch, &cancel, 100), vec![work(), work()], &mut |tick| seen += tick.ops).unwrap();
    assert!(outcome.ops >= seen && seen > 0, "{} {seen}", outcome.ops);
    assert_eq!(outcome.bytes, outcome.ops * 10);
    assert!(outcome.checks.verified >= outcome.ops && outcome.checks.wrong == 0);
    assert_eq!(outcome.latency["op"].count, outcome.checks.verified);
    assert!(!outcome.partial);
}

#[test]
fn a_worker_that_waits_for_the_end_is_released_when_the_time_is_over() {
    let (watch, cancel) = (Watch::new(), AtomicBool::new(false));
    let ended = AtomicBool::new(false);
    let work: Work<'_> = Box::new(|worker| {
        worker.start();
        worker.done(1, 0);
        while !ended.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        Ok(())
    });
    let let_go = || ended.store(true, Ordering::Relaxed);
    let outcome = run_then(&plan(&watch, &cancel, 20), vec![work], &mut |_| {}, &let_go).unwrap();
    assert!(outcome.elapsed_s >= 0.02);
}

#[test]
fn a_measurement_waits_for_its_first_operation() {
    let (watch, cancel) = (Watch::new(), AtomicBool::new(false));
    let work: Work<'_> = Box::new(|worker| {
        worker.start();
        std::thread::sleep(Duration::from_secs(1));
        worker.done(u64::from(worker.running()), 10);
        Ok(())
    });
    let outcome = run(&plan(&watch, &cancel, 20), vec![work], &mut |_| {}).unwrap();
    assert!(outcome.ops == 1 && outcome.elapsed_s >= 1.0, "{} {}", outcome.ops, outcome.elapsed_s);
}

#[test]
fn a_run_ends_in_time_although_its_counters_cannot_be_read_before_its_end() {
    let (watch, cancel) = (Watch::new(), AtomicBool::new(false));
    let ended = AtomicBool::new(false);
    let work: Work<'_> = Box::new(|worker| {
        worker.start();
        worker.done(1, 0);
        while worker.running() {
            std::thread::yield_now();
        }
        Ok(())
    });
    // Like a memory limit that workers keep exhausted: this thread makes no progress until they are stopped.
    let mut stuck = |_: &Tick| {
        let tried = Instant::now();
        while !ended.load(Ordering::Relaxed) && tried.elapsed() < Duration::from_secs(60) {
            std::thread::yield_now();
        }
    };
    let let_go = || ended.store(true, Ordering::Relaxed);
    let outcome = run_then(&plan(&watch, &cancel, 2_000), vec![work], &mut stuck, &let_go).unwrap();
    assert!(outcome.elapsed_s < 60.0, "it ended {} s after it began", outcome.elapsed_s);
}

#[test]
fn the_clock_runs_before_the_first_worker_does() {
    let (watch, cancel) = (Watch::new(), AtomicBool::new(false));
    // Many more workers than CPUs, each with a fixed amount of work.
    let longest = Mutex::new(Duration::ZERO);
    let work = || -> Work<'_> {
        Box::new(|worker| {
            worker.start();
            while worker.started().elapsed() < Duration::from_millis(2) {}
            worker.done(1, 1);
            let mut longest = longest.lock().unwrap();
            *longest = longest.max(worker.started().elapsed());
            Ok(())
        })
    };
    for _ in 0..20 {
        let outcome = run(&plan(&watch, &cancel, 60_000), (0..32).map(|_| work()).collect(), &mut |_| {}).unwrap();
        let longest = std::mem::take(&mut *longest.lock().unwrap());
        assert!(outcome.ops == 32 && outcome.elapsed_s >= longest.as_secs_f64() * 0.99, "{outcome:?} {longest:?}");
    }
}

#[test]
fn a_trial_that_is_to_fill_memory_goes_on_until_it_was_full_for_half_of_its_time() {
    let (watch, cancel) = (Watch::new(), AtomicBool::new(false));
    let filling = |fill_first| Measurement { memory_bytes: Some(u64::MAX), fill_first, ..plan(&watch, &cancel, 100) };
    let lasts = |full| filling(true).duration_with(full).as_secs_f64();
    assert_eq!([lasts(Some(0.01)), lasts(Some(0.07)), lasts(Some(0.19)), lasts(None)], [0.1, 0.12, 0.2, 0.2]);
    assert_eq!(filling(false).duration_with(None), Duration::from_millis(100));
}

#[test]
fn an_error_before_the_start_ends_the_trial_and_releases_the_other_workers() {
    let (watch, cancel) = (Watch::new(), AtomicBool::new(false));
    let good: Work<'_> = Box::new(|worker| {
        worker.start();
        while worker.running() {
            std::thread::yield_now();
        }
        Ok(())
    });
    let bad: Work<'_> = Box::new(|_| Err(LabError::new(LabErrorKind::System, "no file")));
    let error = run(&plan(&watch, &cancel, 60_000), vec![good, bad], &mut |_| {}).unwrap_err();
    assert_eq!(error.to_string(), "no file");
}

#[test]
fn cancelling_keeps_the_results_so_far_and_marks_them_partial() {
    let (watch, cancel) = (Watch::new(), AtomicBool::new(false));
    let work: Work<'_> = Box::new(|worker| {
        worker.start();
        worker.done(5, 5);
        cancel.store(true, Ordering::Relaxed);
        while worker.running() {
            std::thread::yield_now();
        }
        Ok(())
    });
    let outcome = run(&plan(&watch, &cancel, 60_000), vec![work], &mut |_| {}).unwrap();
    assert!(outcome.partial && outcome.ops == 5);
}

#[test]
fn workers_that_finish_early_end_the_trial() {
    let (watch, cancel) = (Watch::new(), AtomicBool::new(false));
    let work: Work<'_> = Box::new(|worker| {
        worker.start();
        worker.done(3, 3);
        Ok(())
    });
    let outcome = run(&plan(&watch, &cancel, 60_000), vec![work], &mut |_| {}).unwrap();
    assert!(outcome.ops == 3 && !outcome.partial);
}
