# Sourced by tests of several processes: with_ranks <ranks> <command ..>. Ends the test as skipped
# where there is no mpirun. Ranks have one thread, and may share cores.
command -v mpirun >/dev/null || { echo "skipped: there is no mpirun (openmpi-bin)"; exit 77; }
export OMP_NUM_THREADS=1
# What MPI itself does not free is no finding of a sanitized build.
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0"
mpi_options=()
if [[ $(mpirun --version 2>&1) == *'Open MPI'* ]]; then
    # Memory of the node is enough to talk; other networks are not looked for.
    mpi_options=(--oversubscribe --bind-to none --mca btl 'self,vader' --mca pml ob1)
    [ "$(id -u)" -ne 0 ] || mpi_options+=(--allow-run-as-root)
fi
# Open MPI's files are the test's own: runs at the same time get into each other's way in a shared folder.
with_ranks() {
    OMPI_MCA_orte_tmpdir_base=$work mpirun "${mpi_options[@]}" -n "$@"
}
